package snapshot

import "titan/libtitan/alloc"

// ledger plays a device's trace block by block: it knows each block's true size, with the rounding and the rest that
// was too small to split, by keeping the free space between blocks as the allocator did. What a trace gets wrong
// (its ring lost events) is counted in odd and passed over.
type ledger struct {
	rules      sizing
	planned    []*piece          // where the segments of a planned trace begin
	pieces     map[uint64]*piece // by where they begin
	tails      map[uint64]*piece // the last ones of mapped ranges of expandable segments, by where they end
	free       *piece            // pieces to use again, by next
	meter      alloc.Meter
	streams    map[alloc.Stream]*alloc.Meter
	last       *alloc.Meter // that of lastStream
	lastStream alloc.Stream
	uses       []use // by owner
	labels     []use // by category
	mallocs    int
	odd        int
	delays     delays
	trace      []Event
	prompt     bool // frees complete at once: the trace has one event a free
}

// use is what an owner has at the moment.
type use struct {
	Active, Pending       int64 // block bytes
	Blocks, PendingBlocks int
	PeakActive            int64
	PeakPending           int64
	Depth                 int // the most blocks pending at once
}

// delays are how long deferred frees took.
type delays struct {
	Count      int
	Micros     int64 // sum, of Timed of them
	Timed      int
	MaxMicros  int64
	MaxMallocs int
}

// newLedger starts at the base, where peaks start too.
func newLedger(s *Snapshot, d *Device, b *base) *ledger {
	l := &ledger{
		rules: s.sizing(), pieces: map[uint64]*piece{}, tails: map[uint64]*piece{}, streams: map[alloc.Stream]*alloc.Meter{},
		trace: d.Trace, prompt: b.prompt, uses: make([]use, len(s.Owners)), labels: make([]use, len(s.Labels)),
	}
	blocks := b.blocks
	for _, seg := range b.segments {
		for len(blocks) > 0 && blocks[0].Addr < seg.addr {
			l.addBase(&blocks[0], nil)
			blocks = blocks[1:]
		}
		tail := l.addSegment(seg)
		for len(blocks) > 0 && blocks[0].Addr < seg.end() {
			tail = l.addBase(&blocks[0], tail)
			blocks = blocks[1:]
		}
	}
	for i := range blocks {
		l.addBase(&blocks[i], nil)
	}
	l.meter = alloc.Meter{Now: l.meter.Now, Peak: l.meter.Now, AtPeakActive: l.meter.Now}
	for _, m := range l.streams {
		*m = alloc.Meter{Now: m.Now, Peak: m.Now, AtPeakActive: m.Now}
	}
	return l
}

// addBase places a block that lived before the trace in tail, the free rest of its segment, and returns what is left
// of that. Without room it is placed outside.
func (l *ledger) addBase(b *baseBlock, tail *piece) (rest *piece) {
	p := tail
	if p == nil || b.Addr < p.addr {
		p, rest = l.loose(b.Addr, b.Size, b.stream), tail
	} else {
		if b.Addr > p.addr {
			p = l.cut(p, int64(b.Addr-p.addr))
		}
		if b.Size < p.size {
			rest = l.cut(p, b.Size)
		}
	}
	p.requested, p.owner, p.stream = b.Requested, b.Owner, b.stream
	l.take(p)
	if b.State == alloc.PendingFree {
		l.deferFree(p, -1)
	}
	return rest
}

// step plays event i and returns how many events it was: a free that completes at once is two.
func (l *ledger) step(i int) int {
	e := &l.trace[i]
	switch e.Action {
	case alloc.Alloc:
		l.alloc(e, i)
	case alloc.FreeRequested:
		p := l.block(e)
		if p == nil {
			break
		}
		if i+1 < len(l.trace) && l.trace[i+1].Action == alloc.FreeCompleted && l.trace[i+1].Addr == e.Addr {
			l.freeNow(p)
			return 2
		}
		if l.prompt {
			l.freeNow(p)
		} else if p.state == alloc.Active {
			l.deferFree(p, i)
		}
	case alloc.FreeCompleted:
		if p := l.block(e); p != nil && p.state == alloc.PendingFree {
			l.complete(p, e)
		} else if p != nil {
			l.freeNow(p)
		}
	case alloc.SegmentAlloc, alloc.SegmentMap:
		l.addSegment(span{addr: e.Addr, size: e.Size, stream: e.Stream, expandable: e.Action == alloc.SegmentMap})
	case alloc.SegmentFree, alloc.SegmentUnmap:
		l.dropSegment(e)
	}
	return 1
}

// block is the block that e is about.
func (l *ledger) block(e *Event) *piece {
	p := l.pieces[e.Addr]
	if p == nil || p.state == alloc.Inactive {
		l.odd++
		return nil
	}
	return p
}

func (l *ledger) alloc(e *Event, i int) {
	l.mallocs++
	p := l.pieces[e.Addr]
	if p != nil && p.state != alloc.Inactive { // the ring lost its free
		l.odd++
		l.freeNow(p)
		p = l.pieces[e.Addr]
	}
	size := l.rules.Round(e.Size)
	if p == nil && l.planned != nil {
		p = l.within(e.Addr)
	}
	if p == nil || p.size < size {
		if p != nil {
			l.odd++
		}
		p = l.loose(e.Addr, size, e.Stream)
	} else if l.rules.Splits(p.size, size) {
		l.cut(p, size)
	}
	p.requested, p.owner, p.category, p.stream, p.began = e.Size, e.Owner, e.Category, e.Stream, i
	l.take(p)
}

func (l *ledger) take(p *piece) {
	p.state = alloc.Active
	l.move(p, alloc.Taken(p.requested, p.size))
	l.tally(p, p.size, 0, 1, 0)
}

func (l *ledger) deferFree(p *piece, i int) {
	p.state, p.began, p.mallocs = alloc.PendingFree, i, l.mallocs
	l.move(p, alloc.Deferred(p.size))
	l.tally(p, 0, p.size, 0, 1)
}

func (l *ledger) complete(p *piece, e *Event) {
	if p.began >= 0 {
		l.delays.add(&l.trace[p.began], e, l.mallocs-p.mallocs)
	}
	l.tally(p, -p.size, -p.size, -1, -1)
	l.move(p, alloc.Completed(p.requested, p.size))
	l.merge(p)
}

func (l *ledger) freeNow(p *piece) {
	if p.state == alloc.PendingFree {
		l.tally(p, -p.size, -p.size, -1, -1)
		l.move(p, alloc.Completed(p.requested, p.size))
	} else {
		l.tally(p, -p.size, 0, -1, 0)
		l.move(p, alloc.Freed(p.requested, p.size))
	}
	l.merge(p)
}

func (l *ledger) move(p *piece, c alloc.Counts) {
	l.meter.Move(c)
	l.stream(p.stream).Move(c)
}

func (l *ledger) stream(s alloc.Stream) *alloc.Meter {
	if l.last != nil && l.lastStream == s { // nearly always
		return l.last
	}
	m := l.streams[s]
	if m == nil {
		m = &alloc.Meter{}
		l.streams[s] = m
	}
	l.last, l.lastStream = m, s
	return m
}

func (l *ledger) tally(p *piece, active, pending int64, blocks, pendingBlocks int) {
	l.uses[p.owner].add(active, pending, blocks, pendingBlocks)
	l.labels[p.category].add(active, pending, blocks, pendingBlocks)
}

func (u *use) add(active, pending int64, blocks, pendingBlocks int) {
	u.Active += active
	u.Pending += pending
	u.Blocks += blocks
	u.PendingBlocks += pendingBlocks
	u.PeakActive = max(u.PeakActive, u.Active)
	u.PeakPending = max(u.PeakPending, u.Pending)
	u.Depth = max(u.Depth, u.PendingBlocks)
}

func (d *delays) add(from, to *Event, mallocs int) {
	d.Count++
	d.MaxMallocs = max(d.MaxMallocs, mallocs)
	if from.Time > 0 && to.Time >= from.Time {
		d.Timed++
		d.Micros += to.Time - from.Time
		d.MaxMicros = max(d.MaxMicros, to.Time-from.Time)
	}
}
