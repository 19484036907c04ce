package alloc

// Block is a range of a segment. A caller gets one from [Allocator.Malloc] and gives it back to [Allocator.Free],
// after which it is not the caller's to look at.
type Block struct {
	addr       uint64
	size       int64
	requested  int64
	owner      string
	state      state
	segment    *segment
	prev, next *Block   // neighbours in the segment
	uses       []Stream // other streams with work that needs the block
	marks      int      // of other streams, that have not passed yet
	dropped    bool     // freed, and held until its stream has waited for uses
}

type state uint8

const (
	cached    state = iota // in its pool, to be handed out
	allocated              // a caller's
	pending                // freed, not reusable yet
	unmapped               // addresses of an expandable segment without memory
)

// segment is what was taken from the device at once: memory, or the addresses of an expandable segment.
type segment struct {
	pool       *pool
	head       *Block // the first block; it stays the same one
	expandable bool
}

// Addr is where the block begins.
func (b *Block) Addr() uint64 { return b.addr }

// Stream is whose pool the block came from.
func (b *Block) Stream() Stream { return b.segment.pool.stream }

func (b *Block) end() uint64 { return b.addr + uint64(b.size) }

// whole reports whether the block is all of its segment.
func (b *Block) whole() bool { return b.prev == nil && b.next == nil }

// cut splits b after size bytes and returns the rest, in b's state and in no pool.
func (b *Block) cut(size int64) *Block {
	rest := &Block{addr: b.addr + uint64(size), size: b.size - size, state: b.state, segment: b.segment, prev: b, next: b.next}
	if rest.next != nil {
		rest.next.prev = rest
	}
	b.next, b.size = rest, size
	return rest
}

// absorb joins b's next neighbour, which is in no pool, to b.
func (b *Block) absorb() {
	b.size += b.next.size
	b.next = b.next.next
	if b.next != nil {
		b.next.prev = b
	}
}

// merge joins b, which is in no pool, with neighbours of its state and puts the result in the pool.
func (b *Block) merge() *Block {
	p := b.segment.pool
	if n := b.next; n != nil && n.state == b.state {
		p.remove(n)
		b.absorb()
	}
	if v := b.prev; v != nil && v.state == b.state {
		p.remove(v)
		v.absorb()
		b = v
	}
	p.insert(b)
	return b
}
