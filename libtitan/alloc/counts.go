package alloc

// Counts are the allocator's counters in bytes, in torch.cuda.memory_stats' sense. All but Requested are of whole
// blocks.
type Counts struct {
	Requested int64 `json:"requested_bytes"` // as asked for; falls when a free completes
	Allocated int64 `json:"allocated_bytes"` // falls when a free is requested
	Active    int64 `json:"active_bytes"`    // falls when a free completes
	Reserved  int64 `json:"reserved_bytes"`  // taken from the device
	Pending   int64 `json:"pending_bytes"`   // freed, but not reusable yet: active less allocated
}

func (c Counts) plus(d Counts) Counts {
	return Counts{c.Requested + d.Requested, c.Allocated + d.Allocated, c.Active + d.Active, c.Reserved + d.Reserved, c.Pending + d.Pending}
}

// add and raise work in place: traces have millions of events.
func (c *Counts) add(d *Counts) {
	c.Requested += d.Requested
	c.Allocated += d.Allocated
	c.Active += d.Active
	c.Reserved += d.Reserved
	c.Pending += d.Pending
}

func (c *Counts) raise(d *Counts) {
	c.Requested = max(c.Requested, d.Requested)
	c.Allocated = max(c.Allocated, d.Allocated)
	c.Active = max(c.Active, d.Active)
	c.Reserved = max(c.Reserved, d.Reserved)
	c.Pending = max(c.Pending, d.Pending)
}

// Meter follows counters and their peaks.
type Meter struct {
	Now          Counts
	Peak         Counts // each counter's own
	AtPeakActive Counts // all, when Active first reached its peak
}

// Move changes the counters by one event; a free that completes at once is one event. It reports a new peak of Active.
func (m *Meter) Move(d Counts) bool {
	m.Now.add(&d)
	higher := m.Now.Active > m.Peak.Active
	m.Peak.raise(&m.Now)
	if higher {
		m.AtPeakActive = m.Now
	}
	return higher
}

// Taken is how the counters move when a block of size bytes is handed out, of which requested were asked for; the
// functions below are for its other events.
func Taken(requested, size int64) Counts {
	return Counts{Requested: requested, Allocated: size, Active: size}
}

// Freed is a free that is requested and completes at once.
func Freed(requested, size int64) Counts {
	return Counts{Requested: -requested, Allocated: -size, Active: -size}
}

// Deferred is a free that is requested.
func Deferred(size int64) Counts { return Counts{Allocated: -size, Pending: size} }

// Completed is the end of a deferred free.
func Completed(requested, size int64) Counts {
	return Counts{Requested: -requested, Active: -size, Pending: -size}
}
