package alloc

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// Options are what an Allocator works with, beside its device.
type Options struct {
	Config
	Trace func(Event)  // called for every event, in order, under the allocator's lock; may be nil
	Now   func() int64 // microseconds; nil is the wall clock's Unix time
}

// Allocator hands out blocks of a device's memory. It may be used by many goroutines.
type Allocator struct {
	mu       sync.Mutex
	device   Device
	options  Options
	pools    map[poolKey]*pool
	order    []*pool // of pools, as they were made
	segments map[*segment]bool
	queues   []*queue               // of deferred frees, one a stream
	users    map[[2]Stream][]*Block // blocks by their stream and one that uses them, under Hold
	meter    Meter
	retries  int64
	ooms     int64
	clock    func() int64
}

// New makes an empty allocator. Expandable segments need a device that is a Mapper.
func New(d Device, o Options) (*Allocator, error) {
	if _, ok := d.(Mapper); o.Expandable && !ok {
		return nil, errors.New("alloc: expandable segments: the device cannot map memory: leave them off")
	}
	a := &Allocator{device: d, options: o, pools: map[poolKey]*pool{}, segments: map[*segment]bool{}, users: map[[2]Stream][]*Block{}, clock: o.Now}
	if a.clock == nil {
		a.clock = func() int64 { return time.Now().UnixMicro() }
	}
	return a, nil
}

// Request asks for memory.
type Request struct {
	Bytes  int64
	Stream Stream // that the memory is used on, unless Use names more
	Pool   PoolID
	Owner  string // for the trace
}

// OutOfMemory is a request that failed after all cached memory had been given back.
type OutOfMemory struct {
	Bytes int64 // the block that was needed
	Counts
	Err error // the device's
}

func (e *OutOfMemory) Error() string {
	return fmt.Sprintf("alloc: %d bytes: out of memory with %d allocated, %d pending on streams, %d reserved: %v", e.Bytes, e.Allocated, e.Pending, e.Reserved, e.Err)
}

func (e *OutOfMemory) Unwrap() error { return e.Err }

// ExitCode marks the device as the cause.
func (e *OutOfMemory) ExitCode() int { return 5 }

// Malloc hands out a block. Frees that have completed since the last call are noticed here, and only here.
func (a *Allocator) Malloc(r Request) (*Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r.Bytes <= 0 || r.Bytes > MaxRequest {
		return nil, fmt.Errorf("alloc: a request of %d bytes: want 1 to %d", r.Bytes, int64(MaxRequest))
	}
	if err := a.poll(); err != nil {
		return nil, err
	}
	if a.options.Policy == SameStream {
		r.Stream = 0
	}
	size := a.options.Round(r.Bytes)
	p := a.pool(poolKey{r.Stream, size <= SmallRequest, r.Pool})
	b := p.take(size, &a.options.Config)
	if b == nil {
		var err error
		if b, err = a.grow(p, size, r.Owner); err != nil {
			return nil, err
		}
	}
	a.hand(b, size, r)
	return b, nil
}

// hand gives size of b, which is in no pool, to r.
func (a *Allocator) hand(b *Block, size int64, r Request) {
	if a.options.Splits(b.size, size) {
		p := b.segment.pool
		p.insert(b.cut(size))
	}
	b.state, b.requested, b.owner = allocated, r.Bytes, r.Owner
	a.meter.Move(Taken(b.requested, b.size))
	a.emit(Event{Action: Alloc, Addr: b.addr, Size: b.requested, Stream: r.Stream, Owner: b.owner})
}

// pool finds or makes the pool of a key.
func (a *Allocator) pool(k poolKey) *pool {
	p := a.pools[k]
	if p == nil {
		p = &pool{poolKey: k}
		a.pools[k] = p
		a.order = append(a.order, p)
	}
	return p
}

func (a *Allocator) emit(e Event) {
	if a.options.Trace != nil {
		e.Time = a.clock()
		a.options.Trace(e)
	}
}

// Stats are the counters, and how often memory ran short.
type Stats struct {
	Meter
	Segments int
	Retries  int64 // requests that were served after cached memory had been given back
	OOMs     int64 // requests that failed
}

// Stats reads the counters.
func (a *Allocator) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Stats{a.meter, len(a.segments), a.retries, a.ooms}
}
