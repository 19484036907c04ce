package snapshot

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"

	"titan/libtitan/alloc"
)

// absent is a number that the file does not give.
const absent = math.MinInt64

// rawEvent is a trace event as the file has it.
type rawEvent struct {
	action             string
	addr, size         int64 // or absent
	stream, time       int64
	category, metadata string
	owner              int32
	pool               alloc.PoolID
	pooled             bool
}

// rawSegment and rawBlock are those of `segments`.
type rawSegment struct {
	device, addr, size, stream int64
	kind                       string
	pool                       alloc.PoolID
	expandable                 bool
	blocks                     []rawBlock
}

type rawBlock struct {
	addr, size, requested int64
	state                 string
	owner                 int32
}

// rawScope is one start or end of a named scope.
type rawScope struct {
	name, stage  string
	device, time int64
}

// builder checks what a reader found and makes a Snapshot of it.
type builder struct {
	*interner
	traces   [][]Event // by device
	segments map[int][]Segment
	scopes   []rawScope
	config   alloc.Config
	pools    map[alloc.PoolID]int16
}

func newBuilder() *builder {
	return &builder{interner: newInterner(), segments: map[int][]Segment{}, pools: map[alloc.PoolID]int16{}}
}

// event checks r. Addresses end below 2^62, sizes at maxBytes.
func (b *builder) event(r *rawEvent) (Event, error) {
	e := Event{Action: alloc.ParseAction(r.action), Stream: alloc.Stream(r.stream), Owner: r.owner}
	switch r.action {
	case "":
		return e, errors.New("no action")
	case "free": // one event for both, as hand-made traces have it
		e.Action = alloc.FreeCompleted
	}
	if r.time > 0 {
		e.Time = r.time
	}
	if name := cmp.Or(r.category, r.metadata); name != "" {
		e.Category = b.label(name)
	}
	if e.Action == alloc.OOM || e.Action == alloc.Ignored || e.Action == alloc.Wait { // these have no address
		r.addr = 0
	}
	if r.size == absent && e.Action != alloc.Alloc && e.Action < alloc.SegmentAlloc || e.Action >= alloc.OOM {
		r.size = max(r.size, 0) // a free's follows from its alloc
	}
	switch {
	case r.addr == absent:
		return e, fmt.Errorf("%s: no addr", r.action)
	case r.size == absent:
		return e, fmt.Errorf("%s: no size", r.action)
	case r.addr < 0 || r.addr > 1<<62:
		return e, fmt.Errorf("%s: addr %d is no address", r.action, r.addr)
	case r.size < 0 || r.size > maxBytes:
		return e, fmt.Errorf("%s: size %d is out of range", r.action, r.size)
	}
	e.Addr, e.Size = uint64(r.addr), r.size
	if r.pooled {
		e.Pool = b.poolIndex(r.pool)
	}
	return e, nil
}

// poolIndex numbers private pools from 1; so many at most as an index holds.
func (b *builder) poolIndex(id alloc.PoolID) int16 {
	if at, ok := b.pools[id]; ok || len(b.pools) == math.MaxInt16 {
		return at
	}
	at := int16(len(b.pools) + 1)
	b.pools[id] = at
	return at
}

// trace adds the trace of the next device.
func (b *builder) trace(events []Event) { b.traces = append(b.traces, events) }

var blockStates = map[string]alloc.BlockState{
	"inactive": alloc.Inactive, "active_allocated": alloc.Active,
	"active_pending_free": alloc.PendingFree, "active_awaiting_free": alloc.PendingFree,
}

// segment checks r and its blocks: in order of address, within the segment. What they leave out is inactive.
func (b *builder) segment(r *rawSegment) error {
	if r.addr < 0 || r.addr > 1<<62 || r.size <= 0 || r.size > maxBytes || r.device < 0 || r.device > 4096 {
		return fmt.Errorf("a segment of %d bytes at %d on device %d is out of range", r.size, r.addr, r.device)
	}
	s := Segment{Addr: uint64(r.addr), Size: r.size, Stream: alloc.Stream(r.stream), Pool: r.pool, Expandable: r.expandable}
	s.Small = r.kind == "small" || r.kind == "" && r.size == alloc.SmallSegment
	at, end := r.addr, r.addr+r.size
	fill := func(to int64) {
		if to > at {
			s.Blocks = append(s.Blocks, Block{Addr: uint64(at), Size: to - at})
		}
	}
	for i := range r.blocks {
		p := &r.blocks[i]
		if p.addr == absent {
			p.addr = at // very old snapshots give none
		}
		state, ok := blockStates[p.state]
		switch {
		case !ok:
			return fmt.Errorf("block %d of the segment at %d: unknown state %.40q", i, r.addr, p.state)
		case p.size <= 0 || p.addr < at || p.size > end-p.addr:
			return fmt.Errorf("block %d of the segment at %d: %d bytes at %d do not fit between the one before and the segment's end", i, r.addr, p.size, p.addr)
		}
		fill(p.addr)
		at = p.addr + p.size
		if p.requested < 0 || p.requested > p.size {
			p.requested = p.size
		}
		s.Blocks = append(s.Blocks, Block{uint64(p.addr), p.size, p.requested, state, p.owner})
	}
	fill(end)
	b.segments[int(r.device)] = append(b.segments[int(r.device)], s)
	return nil
}

// finish puts the parts together.
func (b *builder) finish() (*Snapshot, error) {
	s := &Snapshot{Config: b.config}
	devices := len(b.traces)
	for d := range b.segments {
		devices = max(devices, d+1)
	}
	for i := range devices {
		d := Device{Index: i, Segments: b.segments[i]}
		if i < len(b.traces) {
			d.Trace = b.traces[i]
		}
		slices.SortStableFunc(d.Segments, func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
		for j := 1; j < len(d.Segments); j++ {
			if p := d.Segments[j-1]; p.Addr+uint64(p.Size) > d.Segments[j].Addr {
				return nil, fmt.Errorf("device %d: the segments at %d and %d overlap", i, p.Addr, d.Segments[j].Addr)
			}
		}
		b.categorize(&d)
		if len(d.Trace)+len(d.Segments) > 0 {
			s.Devices = append(s.Devices, d)
		}
	}
	s.Owners, s.Labels, s.pools = b.list, b.names, make([]alloc.PoolID, len(b.pools))
	for id, at := range b.pools {
		s.pools[at-1] = id
	}
	for i := range s.Devices {
		s.Config.Expandable = s.Config.Expandable || grows(&s.Devices[i])
	}
	return s, nil
}

// grows reports whether a device has expandable segments, whatever the settings say.
func grows(d *Device) bool {
	return slices.ContainsFunc(d.Trace, func(e Event) bool { return e.Action == alloc.SegmentMap })
}

// categorize gives each allocation without a label of its own that of the innermost scope that is open at its time,
// else what its owner's frames say.
func (b *builder) categorize(d *Device) {
	var byOwner []int32
	for i := range b.list {
		byOwner = append(byOwner, b.label(b.list[i].Category()))
	}
	open := b.openScopes(d.Index)
	for i := range d.Trace {
		e := &d.Trace[i]
		if e.Action != alloc.Alloc || e.Category != 0 {
			continue
		}
		if e.Category = open(e.Time); e.Category == 0 {
			e.Category = byOwner[e.Owner]
		}
	}
}

// openScopes gives a function of rising times to the label of the innermost open scope.
func (b *builder) openScopes(device int) func(time int64) int32 {
	var scopes []rawScope
	for _, s := range b.scopes {
		if s.device == int64(device) {
			scopes = append(scopes, s)
		}
	}
	slices.SortStableFunc(scopes, func(x, y rawScope) int { return cmp.Compare(x.time, y.time) })
	var stack []int32
	return func(time int64) int32 {
		for len(scopes) > 0 && scopes[0].time <= time {
			if scopes[0].stage == "START" {
				stack = append(stack, b.label(scopes[0].name))
			} else if len(stack) > 0 {
				stack = stack[:len(stack)-1]
			}
			scopes = scopes[1:]
		}
		if len(stack) == 0 {
			return 0
		}
		return stack[len(stack)-1]
	}
}
