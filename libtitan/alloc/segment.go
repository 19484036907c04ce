package alloc

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// grow takes memory for a block of size from the device; when there is none, cached memory is given back, first
// what is too large to split, then all, and the device is asked again.
func (a *Allocator) grow(p *pool, size int64, owner string) (*Block, error) {
	b, err := a.obtain(p, size, owner)
	if err == nil {
		return b, nil
	}
	if enough, e := a.freeOversize(p, size); e != nil {
		return nil, e
	} else if enough {
		if b, err = a.obtain(p, size, owner); err == nil {
			return b, nil
		}
	}
	if e := errors.Join(a.drain(), a.freeCached()); e != nil {
		return nil, e
	}
	a.retries++
	if b, err = a.obtain(p, size, owner); err == nil {
		return b, nil
	}
	a.ooms++
	a.emit(Event{Action: OOM, Size: size, Stream: p.stream, Owner: owner})
	return nil, &OutOfMemory{size, a.meter.Now, err}
}

// obtain takes a free block of at least size from the device; it is in no pool.
func (a *Allocator) obtain(p *pool, size int64, owner string) (*Block, error) {
	if a.options.Expandable && p.id == (PoolID{}) {
		return a.expand(p, size, owner)
	}
	bytes := segmentSize(size)
	addr, err := a.device.Alloc(bytes)
	if err != nil {
		return nil, err
	}
	b := a.newSegment(p, addr, bytes, false)
	a.meter.Move(Counts{Reserved: bytes})
	a.emit(Event{Action: SegmentAlloc, Addr: addr, Size: bytes, Stream: p.stream, Owner: owner})
	return b, nil
}

// newSegment makes a segment of one block, in no pool.
func (a *Allocator) newSegment(p *pool, addr uint64, bytes int64, expandable bool) *Block {
	s := &segment{pool: p, expandable: expandable}
	s.head = &Block{addr: addr, size: bytes, segment: s}
	a.segments[s] = true
	return s.head
}

// freeOversize gives back blocks that may not be split, on a device that has no room for size: the smallest that
// would do, or the largest ones until they add up to it. It reports whether they do.
func (a *Allocator) freeOversize(p *pool, size int64) (bool, error) {
	limit := a.options.maxSplit()
	if limit == math.MaxInt64 {
		return false, nil
	}
	need := max(size, limit)
	if i := p.atLeast(need); i < len(p.cached) && !p.cached[i].segment.expandable && p.cached[i].whole() {
		return true, a.freeSegment(p.cached[i])
	}
	var freed int64
	for i := len(p.cached) - 1; i >= 0 && freed < need && p.cached[i].size >= limit; i-- {
		if b := p.cached[i]; !b.segment.expandable && b.whole() {
			freed += b.size
			if err := a.freeSegment(b); err != nil {
				return false, err
			}
		}
	}
	return freed >= need, nil
}

// EmptyCache gives back what can be: segments without a block in use, and the unused pages of expandable ones.
func (a *Allocator) EmptyCache() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.drain(); err != nil {
		return err
	}
	return a.freeCached()
}

// freeCached empties the default pools, the large ones first. Private pools belong to their graphs.
func (a *Allocator) freeCached() error {
	for _, small := range []bool{false, true} {
		for _, p := range a.order {
			if p.small != small || p.id != (PoolID{}) {
				continue
			}
			for _, b := range slices.Clone(p.cached) {
				if err := a.giveBack(b); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// giveBack returns what it can of a cached block to the device.
func (a *Allocator) giveBack(b *Block) error {
	switch {
	case b.segment.expandable:
		return a.unmap(b)
	case b.whole():
		return a.freeSegment(b)
	}
	return nil
}

// freeSegment returns the segment that b is all of.
func (a *Allocator) freeSegment(b *Block) error {
	p := b.segment.pool
	if err := a.device.Free(b.addr, b.size); err != nil {
		return fmt.Errorf("alloc: segment at %#x: %w", b.addr, err)
	}
	p.remove(b)
	delete(a.segments, b.segment)
	a.meter.Move(Counts{Reserved: -b.size})
	a.emit(Event{Action: SegmentFree, Addr: b.addr, Size: b.size, Stream: p.stream})
	return nil
}
