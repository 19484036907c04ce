package snapshot

import (
	"cmp"
	"slices"

	"titan/libtitan/alloc"
)

// base is what was there before the first event of a trace, worked back from what is there at its end: of segments
// by undoing the trace, of blocks by what has no alloc in it.
type base struct {
	segments []span
	blocks   []baseBlock // by address
	older    int         // blocks that outlived the trace
	freed    int         // blocks that the trace frees
	prompt   bool        // the trace has one event a free: it completes at once
}

// span is a range of a segment.
type span struct {
	addr       uint64
	size       int64
	stream     alloc.Stream
	expandable bool
}

func (s *span) end() uint64 { return s.addr + uint64(s.size) }

type baseBlock struct {
	Block
	stream alloc.Stream
	exact  bool // its size is known from the segments
}

func newBase(s *Snapshot, d *Device) *base {
	b := &base{prompt: prompt(d)}
	b.segments = spansBefore(d)
	b.findBlocks(d)
	b.fit(s.sizing())
	return b
}

// prompt reports whether the frees of a trace without a completed one did complete: what is pending at the end would
// stand in the segments.
func prompt(d *Device) bool {
	pending := false
	for _, s := range d.Segments {
		pending = pending || slices.ContainsFunc(s.Blocks, func(b Block) bool { return b.State == alloc.PendingFree })
	}
	return len(d.Segments) > 0 && !pending && !slices.ContainsFunc(d.Trace, func(e Event) bool { return e.Action == alloc.FreeCompleted })
}

// spansBefore is what was reserved before the trace: what is at the end, with the trace's events of segments undone,
// the last one first. Where nothing is known of the end it is what the trace gives back without having taken it.
func spansBefore(d *Device) []span {
	if len(d.Segments) == 0 {
		return givenBack(d.Trace)
	}
	var spans []span
	for _, s := range d.Segments {
		spans = append(spans, span{s.Addr, s.Size, s.Stream, s.Expandable})
	}
	for i := len(d.Trace) - 1; i >= 0; i-- {
		switch e := &d.Trace[i]; e.Action {
		case alloc.SegmentAlloc, alloc.SegmentMap:
			spans, _ = without(spans, e.Addr, e.Size)
		case alloc.SegmentFree, alloc.SegmentUnmap:
			spans = with(spans, e)
		}
	}
	return spans
}

func givenBack(trace []Event) (base []span) {
	var taken []span
	for i := range trace {
		switch e := &trace[i]; e.Action {
		case alloc.SegmentAlloc, alloc.SegmentMap:
			taken = with(taken, e)
		case alloc.SegmentFree, alloc.SegmentUnmap:
			var ok bool
			if taken, ok = without(taken, e.Addr, e.Size); !ok {
				base = with(base, e)
			}
		}
	}
	return base
}

func byStart(s span, addr uint64) int { return cmp.Compare(s.addr, addr) }

// with adds the range of e; ranges of an expandable segment that touch become one.
func with(spans []span, e *Event) []span {
	at, taken := slices.BinarySearchFunc(spans, e.Addr, byStart)
	if taken {
		return spans
	}
	s := span{e.Addr, e.Size, e.Stream, e.Action == alloc.SegmentMap || e.Action == alloc.SegmentUnmap}
	joins := func(a, b span) bool {
		return a.expandable && b.expandable && a.stream == b.stream && a.end() == b.addr
	}
	if at < len(spans) && joins(s, spans[at]) {
		s.size += spans[at].size
		spans = slices.Delete(spans, at, at+1)
	}
	if at > 0 && joins(spans[at-1], s) {
		spans[at-1].size += s.size
		return spans
	}
	return slices.Insert(spans, at, s)
}

// without cuts a range out of the span that holds it, and reports whether one does.
func without(spans []span, addr uint64, size int64) ([]span, bool) {
	at, exact := slices.BinarySearchFunc(spans, addr, byStart)
	if !exact {
		at--
	}
	end := addr + uint64(size)
	if at < 0 || spans[at].end() < end {
		return spans, false
	}
	left, right := spans[at], spans[at]
	left.size = int64(addr - left.addr)
	right.addr, right.size = end, int64(right.end()-end)
	var rest []span
	for _, s := range []span{left, right} {
		if s.size > 0 {
			rest = append(rest, s)
		}
	}
	return slices.Replace(spans, at, at+1, rest...), true
}

// findBlocks collects the blocks that the trace frees without having allocated them, and those at the end that it
// never mentions.
func (b *base) findBlocks(d *Device) {
	requested := slices.ContainsFunc(d.Trace, func(e Event) bool { return e.Action == alloc.FreeRequested })
	live := map[uint64]bool{}
	found := map[uint64]int{} // of blocks that are still there, their index
	add := func(e *Event, s alloc.BlockState) {
		b.blocks = append(b.blocks, baseBlock{Block: Block{Addr: e.Addr, Requested: e.Size, State: s}, stream: e.Stream})
		b.freed++
	}
	for i := range d.Trace {
		switch e := &d.Trace[i]; e.Action {
		case alloc.Alloc:
			live[e.Addr] = true
		case alloc.FreeRequested:
			if !live[e.Addr] {
				found[e.Addr] = len(b.blocks)
				add(e, alloc.Active)
				live[e.Addr] = true
			}
			if b.prompt {
				delete(live, e.Addr)
			}
		case alloc.FreeCompleted:
			if !live[e.Addr] {
				state := alloc.PendingFree
				if !requested {
					state = alloc.Active
				}
				add(e, state)
			}
			delete(live, e.Addr)
			delete(found, e.Addr)
		}
	}
	b.fromEnd(d, live, found)
}

// fromEnd adds the blocks that are older than the trace and there at its end, and the sizes of those found already.
func (b *base) fromEnd(d *Device, live map[uint64]bool, found map[uint64]int) {
	for _, s := range d.Segments {
		for _, blk := range s.Blocks {
			at, known := found[blk.Addr]
			switch {
			case blk.State == alloc.Inactive:
			case known && !b.prompt:
				b.blocks[at].Size, b.blocks[at].exact, b.blocks[at].Owner = blk.Size, true, blk.Owner
			case !live[blk.Addr]:
				b.blocks = append(b.blocks, baseBlock{blk, s.Stream, true})
				b.older++
			}
		}
	}
}

// fit orders the blocks and finds the sizes that are only known as requests: rounded, and in a large segment with
// what is left up to the next block, if it is too little to have been split off.
func (b *base) fit(c sizing) {
	slices.SortStableFunc(b.blocks, func(x, y baseBlock) int { return cmp.Compare(x.Addr, y.Addr) })
	b.blocks = slices.CompactFunc(b.blocks, func(x, y baseBlock) bool { return x.Addr == y.Addr })
	segments := b.segments
	for i := range b.blocks {
		blk := &b.blocks[i]
		if blk.exact {
			continue
		}
		blk.Size = c.Round(blk.Requested)
		for len(segments) > 0 && segments[0].end() <= blk.Addr {
			segments = segments[1:]
		}
		if len(segments) == 0 || segments[0].addr > blk.Addr {
			continue
		}
		end := segments[0].end()
		if i+1 < len(b.blocks) {
			end = min(end, b.blocks[i+1].Addr)
		}
		room := int64(end - blk.Addr)
		if room < blk.Size || !segments[0].expandable && blk.Size > alloc.SmallRequest && !c.Splits(room, blk.Size) {
			blk.Size = room
		}
	}
}
