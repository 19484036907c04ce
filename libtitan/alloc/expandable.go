package alloc

import "fmt"

// page is what an expandable segment maps at once.
func (p *pool) page() int64 {
	if p.small {
		return SmallSegment
	}
	return LargeSegment
}

// expand maps what is missing behind a free block, or at new addresses, until size of it is there.
func (a *Allocator) expand(p *pool, size int64, owner string) (*Block, error) {
	b, err := a.roomFor(p, size)
	if err != nil {
		return nil, err
	}
	if b.state == unmapped {
		if b, err = a.mapBlock(b, min(b.size, size), owner); err != nil {
			return nil, err
		}
	}
	for b.size < size {
		if b, err = a.mapBlock(b.next, min(b.next.size, size-b.size), owner); err != nil {
			return nil, err
		}
	}
	p.remove(b)
	return b, nil
}

// roomFor finds the lowest unmapped addresses from which size bytes are free, with the free block before them; or
// new ones.
func (a *Allocator) roomFor(p *pool, size int64) (*Block, error) {
	for _, b := range p.unmapped {
		if b.prev != nil && b.prev.state == cached {
			b = b.prev
		}
		var free int64
		for n := b; n != nil && free < size && (n.state == cached || n.state == unmapped); n = n.next {
			free += n.size
		}
		if free >= size {
			return b, nil
		}
	}
	m := a.device.(Mapper)
	space := max(roundUp(m.AddressSpace(), p.page()), roundUp(size, p.page()))
	addr, err := m.Reserve(space)
	if err != nil {
		return nil, err
	}
	b := a.newSegment(p, addr, space, true)
	b.state = unmapped
	p.insert(b)
	return b, nil
}

// mapBlock puts memory behind the first bytes of b, rounded up to pages, and returns the cached block they are in.
func (a *Allocator) mapBlock(b *Block, bytes int64, owner string) (*Block, error) {
	p := b.segment.pool
	bytes = roundUp(bytes, p.page())
	if err := a.device.(Mapper).Map(b.addr, bytes); err != nil {
		return nil, err
	}
	addr := b.addr
	p.remove(b)
	if bytes < b.size {
		p.insert(b.cut(bytes))
	}
	b.state = cached
	b = b.merge()
	a.meter.Move(Counts{Reserved: bytes})
	a.emit(Event{Action: SegmentMap, Addr: addr, Size: bytes, Stream: p.stream, Owner: owner})
	return b, nil
}

// unmap takes the memory from behind the whole pages of a cached block.
func (a *Allocator) unmap(b *Block) error {
	p := b.segment.pool
	page := uint64(p.page())
	base := b.segment.head.addr
	first := base + (b.addr-base+page-1)/page*page
	last := base + (b.end()-base)/page*page
	if first >= last {
		return nil
	}
	bytes := int64(last - first)
	if err := a.device.(Mapper).Unmap(first, bytes); err != nil {
		return fmt.Errorf("alloc: unmap %d bytes at %#x: %w", bytes, first, err)
	}
	p.remove(b)
	if first > b.addr {
		before := b
		b = b.cut(int64(first - b.addr))
		p.insert(before)
	}
	if last < b.end() {
		p.insert(b.cut(bytes))
	}
	b.state = unmapped
	b.merge()
	a.meter.Move(Counts{Reserved: -bytes})
	a.emit(Event{Action: SegmentUnmap, Addr: first, Size: bytes, Stream: p.stream})
	return nil
}
