package alloc

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// Segment is a segment and its blocks in order of address, which tile it.
type Segment struct {
	Addr       uint64
	Size       int64
	Stream     Stream
	Small      bool
	Pool       PoolID
	Expandable bool // then it is a mapped part of a larger range of addresses
	Blocks     []Piece
}

// Piece is a block of a Segment.
type Piece struct {
	Addr      uint64
	Size      int64
	Requested int64
	State     BlockState
	Owner     string
}

// BlockState is what a Piece is.
type BlockState uint8

// The states of blocks that have memory.
const (
	Inactive    BlockState = iota // cached
	Active                        // a caller's
	PendingFree                   // freed, not reusable yet
)

var pieceState = map[state]BlockState{cached: Inactive, allocated: Active, pending: PendingFree}

// Adopt makes segments that were taken elsewhere the allocator's own, as if it had made them; peaks start anew. It
// returns the blocks in use by their addresses. An expandable segment reserves the addresses up to the next segment.
func (a *Allocator) Adopt(segments []Segment) (map[uint64]*Block, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	sorted := slices.SortedFunc(slices.Values(segments), func(x, y Segment) int { return cmp.Compare(x.Addr, y.Addr) })
	inUse := map[uint64]*Block{}
	var last *Block // of the expandable segment before
	for i, s := range sorted {
		p := a.pool(poolKey{s.Stream, s.Small, s.Pool})
		var head *Block
		if s.Expandable && last != nil && last.segment.pool == p && s.Addr < last.end() {
			head = a.continueIn(last, s)
		} else {
			head = a.newSegment(p, s.Addr, s.Size, s.Expandable)
			if s.Expandable {
				head.size = a.reach(sorted, i)
			}
		}
		if last = nil; s.Expandable {
			last = head
			if head.size > s.Size {
				last = head.cut(s.Size)
				last.state = unmapped
				p.insert(last)
			}
		}
		if err := a.adoptBlocks(head, s, inUse); err != nil {
			return nil, err
		}
		a.meter.Now.Reserved += s.Size
	}
	a.meter = Meter{a.meter.Now, a.meter.Now, a.meter.Now}
	return inUse, nil
}

// reach is how far the addresses of expandable segment i go: to the next one that is no part of its range.
func (a *Allocator) reach(sorted []Segment, i int) int64 {
	s, space := sorted[i], int64(160<<30)
	if m, ok := a.device.(Mapper); ok {
		space = m.AddressSpace()
	}
	for _, n := range sorted[i+1:] {
		if !n.Expandable || n.Stream != s.Stream || n.Small != s.Small || n.Pool != s.Pool {
			return max(s.Size, min(space, int64(n.Addr-s.Addr)))
		}
		space = max(space, int64(n.Addr-s.Addr)+n.Size)
	}
	return max(s.Size, space)
}

// continueIn maps s within the unmapped block gap, and returns the block from s on.
func (a *Allocator) continueIn(gap *Block, s Segment) *Block {
	p := gap.segment.pool
	p.remove(gap)
	b := gap
	if s.Addr > gap.addr {
		b = gap.cut(int64(s.Addr - gap.addr))
		p.insert(gap)
	}
	b.state = cached
	return b
}

// adoptBlocks cuts b into the blocks of s.
func (a *Allocator) adoptBlocks(b *Block, s Segment, inUse map[uint64]*Block) error {
	at := s.Addr
	for _, piece := range s.Blocks {
		if piece.Addr != at || piece.Size <= 0 || piece.Size > b.size {
			return fmt.Errorf("alloc: segment at %#x: the block at %#x does not follow the one before", s.Addr, piece.Addr)
		}
		at += uint64(piece.Size)
		var rest *Block
		if b.size > piece.Size {
			rest = b.cut(piece.Size)
		}
		a.adoptBlock(b, piece, inUse)
		if b = rest; b == nil {
			break
		}
	}
	if at != s.Addr+uint64(s.Size) {
		return fmt.Errorf("alloc: segment at %#x: its blocks end at %#x, not at its end", s.Addr, at)
	}
	return nil
}

func (a *Allocator) adoptBlock(b *Block, piece Piece, inUse map[uint64]*Block) {
	b.requested, b.owner = piece.Requested, piece.Owner
	switch piece.State {
	case Inactive:
		b.segment.pool.insert(b)
		return
	case Active:
		b.state = allocated
		a.meter.Now = a.meter.Now.plus(Taken(b.requested, b.size))
	case PendingFree:
		b.state = pending
		a.meter.Now = a.meter.Now.plus(Counts{Requested: b.requested, Active: b.size, Pending: b.size})
	}
	inUse[b.addr] = b
}

// Segments lists what the allocator holds, in order of address.
func (a *Allocator) Segments() []Segment {
	a.mu.Lock()
	defer a.mu.Unlock()
	var out []Segment
	heads := slices.SortedFunc(maps.Keys(a.segments), func(x, y *segment) int { return cmp.Compare(x.head.addr, y.head.addr) })
	for _, s := range heads {
		for b := s.head; b != nil; b = b.next {
			if b.state == unmapped {
				continue
			}
			if b == s.head || b.prev.state == unmapped {
				out = append(out, Segment{Addr: b.addr, Stream: s.pool.stream, Small: s.pool.small, Pool: s.pool.id, Expandable: s.expandable})
			}
			last := &out[len(out)-1]
			last.Size += b.size
			last.Blocks = append(last.Blocks, Piece{b.addr, b.size, b.requested, pieceState[b.state], b.owner})
		}
	}
	return out
}
