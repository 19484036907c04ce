package alloc

import (
	"cmp"
	"slices"
)

// poolKey tells pools apart.
type poolKey struct {
	stream Stream
	small  bool
	id     PoolID
}

// pool holds what is free of its segments.
type pool struct {
	poolKey
	cached   []*Block // by size, then address
	unmapped []*Block // by address
}

func bySize(a, b *Block) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.addr, b.addr)) }
func byAddr(a, b *Block) int { return cmp.Compare(a.addr, b.addr) }

// set is where blocks of b's state are kept, and their order.
func (p *pool) set(b *Block) (*[]*Block, func(a, b *Block) int) {
	if b.state == unmapped {
		return &p.unmapped, byAddr
	}
	return &p.cached, bySize
}

func (p *pool) insert(b *Block) {
	set, order := p.set(b)
	i, _ := slices.BinarySearchFunc(*set, b, order)
	*set = slices.Insert(*set, i, b)
}

func (p *pool) remove(b *Block) {
	set, order := p.set(b)
	i, _ := slices.BinarySearchFunc(*set, b, order)
	*set = slices.Delete(*set, i, i+1)
}

// atLeast is the index of the first cached block of size or more.
func (p *pool) atLeast(size int64) int {
	i, _ := slices.BinarySearchFunc(p.cached, size, func(b *Block, size int64) int { return cmp.Compare(b.size, size) })
	return i
}

// take removes the best fit for size from the pool, nil if none fits.
func (p *pool) take(size int64, c *Config) *Block {
	i := p.fit(size, c)
	if i == len(p.cached) {
		return nil
	}
	b, limit := p.cached[i], c.maxSplit()
	if size < limit && b.size >= limit || size >= limit && b.size >= size+maxSlack {
		return nil
	}
	p.cached = slices.Delete(p.cached, i, i+1)
	return b
}

// fit is the index of the smallest block that holds size. A block before unmapped addresses counts with them, so
// that the room to grow is used last; with expandable segments off, blocks of expandable ones are passed over.
func (p *pool) fit(size int64, c *Config) int {
	i := p.atLeast(size)
	for !c.Expandable && i < len(p.cached) && p.cached[i].segment.expandable {
		i++
	}
	for c.Expandable && i+1 < len(p.cached) && p.cached[i].segment.expandable && p.cached[i+1].room() < p.cached[i].room() {
		i++
	}
	return i
}

// room is what b could grow to.
func (b *Block) room() int64 {
	if b.next != nil && b.next.state == unmapped {
		return b.size + b.next.size
	}
	return b.size
}
