package snapshot

import (
	"titan/libtitan/alloc"
)

// Replay says how a trace is played through the allocator's twin.
type Replay struct {
	Policy     Policy
	Config     alloc.Config // its Policy is not looked at
	AsRecorded bool         // Config is the trace's own: segments go where they went
	RunAhead   int          // a deferred free completes this many allocations later at the latest; 0 is no limit
}

// Policy says what becomes of a free that the trace deferred.
type Policy string

// The policies. Without deferred frees in the trace they differ in what is known: Recorded and RecordStream leave it
// as it was.
const (
	Recorded     Policy = "as recorded"   // completes when it did
	RecordStream Policy = "record-stream" // the same: recorded traces say when other streams were done, nothing else does
	Hold         Policy = "hold"          // completes at the wait for the other streams, where the trace has waits, else at once
	SameStream   Policy = "same-stream"   // completes at once, and all memory is of one stream
)

// Outcome is what the twin counted.
type Outcome struct {
	alloc.Meter
	Deferred int // frees that were deferred
}

// player is a replay under way.
type player struct {
	Replay
	twin    *alloc.Allocator
	device  *Device
	pools   []alloc.PoolID
	blocks  map[uint64]*alloc.Block // by the trace's addresses
	pending []pendingBlock          // deferred frees, the oldest first, under RunAhead
	mallocs int
	out     Outcome
	prompt  bool
}

type pendingBlock struct {
	addr    uint64
	block   *alloc.Block
	mallocs int
}

// Run plays device d of s, from what was there before the trace.
func (r Replay) Run(s *Snapshot, d *Device) (*Outcome, error) {
	virtual := &alloc.Virtual{}
	if r.AsRecorded {
		virtual.Place = places(d.Trace)
	}
	config := r.Config
	config.Policy = map[Policy]alloc.Policy{Hold: alloc.Hold, SameStream: alloc.SameStream}[r.Policy]
	twin, err := alloc.New(virtual, alloc.Options{Config: config})
	if err != nil {
		return nil, err
	}
	b := newBase(s, d)
	p := &player{Replay: r, twin: twin, device: d, prompt: b.prompt, pools: s.pools}
	if p.blocks, err = twin.Adopt(newLedger(s, d, b).adoptable(d, r.Policy)); err != nil {
		return nil, err
	}
	for i := 0; i < len(d.Trace); {
		n, err := p.step(i)
		if err != nil {
			return nil, err
		}
		i += n
	}
	p.out.Meter = twin.Stats().Meter
	return &p.out, nil
}

// places gives the recorded addresses of segments of each size, in order.
func places(trace []Event) func(bytes int64) (uint64, bool) {
	left := map[int64][]uint64{}
	for i := range trace {
		if e := &trace[i]; e.Action == alloc.SegmentAlloc {
			left[e.Size] = append(left[e.Size], e.Addr)
		}
	}
	return func(bytes int64) (addr uint64, ok bool) {
		if list := left[bytes]; len(list) > 0 {
			left[bytes] = list[1:]
			return list[0], true
		}
		return 0, false
	}
}

// adoptable lists the segments of a ledger as the twin takes them over. A block in no segment becomes one.
func (l *ledger) adoptable(d *Device, policy Policy) (list []alloc.Segment) {
	for _, head := range l.sorted() {
		if head.prev != nil {
			continue
		}
		seg := alloc.Segment{Addr: head.addr, Stream: head.stream, Expandable: head.expandable}
		for p := head; p != nil; p = p.next {
			seg.Size += p.size
			seg.Blocks = append(seg.Blocks, alloc.Piece{Addr: p.addr, Size: p.size, Requested: p.requested, State: p.state})
		}
		seg.Small = seg.Size == alloc.SmallSegment
		if known := segmentAt(d.Segments, head.addr); known != nil {
			seg.Small, seg.Pool = known.Small, known.Pool
		}
		if policy == SameStream {
			seg.Stream = 0
		}
		list = append(list, seg)
	}
	return disjoint(list)
}

// disjoint leaves out segments that overlap the one before, as only a broken trace has them.
func disjoint(list []alloc.Segment) []alloc.Segment {
	kept := list[:0]
	end := uint64(0)
	for _, s := range list {
		if s.Addr >= end {
			kept = append(kept, s)
			end = s.Addr + uint64(s.Size)
		}
	}
	return kept
}

func (p *player) step(i int) (int, error) {
	e := &p.device.Trace[i]
	switch e.Action {
	case alloc.Alloc:
		return 1, p.alloc(e)
	case alloc.FreeRequested:
		b := p.blocks[e.Addr]
		if b == nil {
			break
		}
		next := i + 1
		if next < len(p.device.Trace) && p.device.Trace[next].Action == alloc.FreeCompleted && p.device.Trace[next].Addr == e.Addr {
			return 2, p.free(e.Addr, b)
		}
		if p.prompt {
			return 1, p.free(e.Addr, b)
		}
		return 1, p.deferFree(e.Addr, b)
	case alloc.FreeCompleted:
		return 1, p.complete(e.Addr)
	case alloc.Use:
		if b := p.blocks[e.Addr]; b != nil && p.Policy == Hold {
			p.twin.Use(b, e.Other)
		}
	case alloc.Wait:
		p.twin.Wait(e.Stream, e.Other, int(e.Size))
	case alloc.SegmentFree, alloc.SegmentUnmap:
		if i == 0 || p.device.Trace[i-1].Action != e.Action { // a run of them is one emptying of the cache
			return 1, p.twin.EmptyCache()
		}
	}
	return 1, nil
}

func (p *player) alloc(e *Event) error {
	if b := p.blocks[e.Addr]; b != nil { // the ring lost its free
		if err := p.release(e.Addr, b); err != nil {
			return err
		}
	}
	for p.mallocs++; len(p.pending) > 0 && p.mallocs > p.pending[0].mallocs+p.RunAhead; p.pending = p.pending[1:] {
		if old := p.pending[0]; p.blocks[old.addr] == old.block {
			if err := p.complete(old.addr); err != nil {
				return err
			}
		}
	}
	b, err := p.twin.Malloc(alloc.Request{Bytes: max(e.Size, 1), Stream: e.Stream, Pool: p.pool(e)})
	if err == nil {
		p.blocks[e.Addr] = b
	}
	return err
}

// pool is the private pool that an event names or whose segment its address lies in.
func (p *player) pool(e *Event) alloc.PoolID {
	if e.Pool > 0 {
		return p.pools[e.Pool-1]
	}
	if s := segmentAt(p.device.Segments, e.Addr); s != nil {
		return s.Pool
	}
	return alloc.PoolID{}
}

// free frees b as far as the twin's policy lets it.
func (p *player) free(addr uint64, b *alloc.Block) error {
	delete(p.blocks, addr)
	return p.twin.Free(b)
}

// deferFree frees a block that the trace kept pending.
func (p *player) deferFree(addr uint64, b *alloc.Block) error {
	if p.Policy == Hold || p.Policy == SameStream {
		return p.free(addr, b)
	}
	p.out.Deferred++
	if p.RunAhead > 0 {
		p.pending = append(p.pending, pendingBlock{addr, b, p.mallocs})
	}
	return p.twin.Defer(b)
}

// complete ends a deferred free, if the twin has not done so.
func (p *player) complete(addr uint64) error {
	b := p.blocks[addr]
	if b == nil {
		return nil
	}
	return p.release(addr, b)
}

// release makes a block reusable, whether its free was requested or not.
func (p *player) release(addr uint64, b *alloc.Block) error {
	delete(p.blocks, addr)
	if p.twin.Pending(b) {
		return p.twin.Complete(b)
	}
	return p.twin.Free(b)
}
