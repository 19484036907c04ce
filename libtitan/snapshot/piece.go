package snapshot

import (
	"cmp"
	"slices"

	"titan/libtitan/alloc"
)

// piece is a range of a segment: a block, or free space.
type piece struct {
	addr       uint64
	size       int64
	requested  int64
	state      alloc.BlockState
	owner      int32
	category   int32
	stream     alloc.Stream
	expandable bool
	loose      bool // in no segment that is known
	began      int  // index of the event that made it a block, or of its free request; -1 is before the trace
	mallocs    int  // how many there had been when its free was requested
	prev, next *piece
}

// newPiece makes a piece, of a used one if there is one.
func (l *ledger) newPiece(v piece) *piece {
	p := l.free
	if p == nil {
		p = &piece{}
	} else {
		l.free = p.next
	}
	*p = v
	return p
}

// drop forgets p.
func (l *ledger) drop(p *piece) {
	if p.prev != nil {
		p.prev.next = p.next
	}
	if p.next != nil {
		p.next.prev = p.prev
	}
	if l.pieces[p.addr] == p {
		delete(l.pieces, p.addr)
	}
	if l.tails[p.end()] == p {
		delete(l.tails, p.end())
	}
	*p = piece{next: l.free}
	l.free = p
}

// cut splits a free piece after size bytes and returns the rest.
func (l *ledger) cut(p *piece, size int64) *piece {
	rest := l.newPiece(piece{addr: p.addr + uint64(size), size: p.size - size, stream: p.stream, expandable: p.expandable, prev: p, next: p.next})
	if rest.next != nil {
		rest.next.prev = rest
	}
	p.next, p.size = rest, size
	l.pieces[rest.addr] = rest
	l.noteTail(rest)
	return rest
}

func (p *piece) end() uint64 { return p.addr + uint64(p.size) }

func (l *ledger) noteTail(p *piece) {
	if p.expandable && p.next == nil {
		l.tails[p.end()] = p
	}
}

// loose makes a piece outside any segment that is known.
func (l *ledger) loose(addr uint64, size int64, s alloc.Stream) *piece {
	p := l.newPiece(piece{addr: addr, size: size, stream: s, loose: true})
	l.pieces[addr] = p
	return p
}

// merge makes a block free space again, one with its free neighbours. A loose one is gone.
func (l *ledger) merge(p *piece) {
	if p.loose {
		l.drop(p)
		return
	}
	p.state, p.owner, p.category = alloc.Inactive, 0, 0
	if n := p.next; n != nil && n.state == alloc.Inactive {
		p.size += n.size
		l.drop(n)
	}
	if v := p.prev; v != nil && v.state == alloc.Inactive {
		v.size += p.size
		l.drop(p)
		p = v
	}
	l.noteTail(p)
}

// addSegment makes s free space and returns it. Mapped ranges of one expandable segment that touch are one.
func (l *ledger) addSegment(s span) *piece {
	l.reserve(s.stream, s.size)
	if l.pieces[s.addr] != nil {
		l.odd++
		return nil
	}
	p := l.newPiece(piece{addr: s.addr, size: s.size, stream: s.stream, expandable: s.expandable})
	l.pieces[s.addr] = p
	if _, ok := l.rules.(planned); ok {
		l.planned = append(l.planned, p)
	}
	if !s.expandable {
		return p
	}
	if n := l.pieces[s.end()]; n != nil && n.expandable && n.stream == s.stream && n.prev == nil {
		p.next, n.prev = n, p
	}
	if v := l.tails[s.addr]; v != nil && v.stream == s.stream {
		p.prev, v.next = v, p
		delete(l.tails, s.addr)
		if v.state == alloc.Inactive {
			l.merge(p)
			return v
		}
	}
	l.merge(p)
	return p
}

func (l *ledger) reserve(s alloc.Stream, bytes int64) {
	l.meter.Move(alloc.Counts{Reserved: bytes})
	l.stream(s).Move(alloc.Counts{Reserved: bytes})
}

// dropSegment takes the range of e, which is free, away.
func (l *ledger) dropSegment(e *Event) {
	l.reserve(e.Stream, -e.Size)
	p := l.around(e.Addr)
	if p == nil || e.Addr+uint64(e.Size) > p.end() {
		l.odd++
		return
	}
	if e.Addr > p.addr {
		p = l.cut(p, int64(e.Addr-p.addr))
	}
	if e.Size < p.size {
		l.cut(p, e.Size)
	}
	before := p.prev
	if p.next != nil {
		p.next.prev = nil
	}
	if before != nil {
		before.next = nil
		l.noteTail(before)
	}
	p.prev, p.next = nil, nil
	l.drop(p)
}

// around is the free space that holds addr. Pages are unmapped from a block that begins less than a page before.
func (l *ledger) around(addr uint64) *piece {
	for at := addr; at <= addr && addr-at < alloc.LargeSegment; at -= alloc.MinBlock {
		if p := l.pieces[at]; p != nil {
			if p.state != alloc.Inactive || p.end() <= addr {
				return nil
			}
			return p
		}
	}
	return nil
}

// within cuts the free space of a planned segment so that a piece begins at addr, nil if that is not free.
func (l *ledger) within(addr uint64) *piece {
	for _, p := range l.planned {
		for ; p != nil; p = p.next {
			if p.state == alloc.Inactive && p.addr < addr && addr < p.end() {
				return l.cut(p, int64(addr-p.addr))
			}
		}
	}
	return nil
}

// sorted lists the pieces by address.
func (l *ledger) sorted() []*piece {
	list := make([]*piece, 0, len(l.pieces))
	for _, p := range l.pieces {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b *piece) int { return cmp.Compare(a.addr, b.addr) })
	return list
}
