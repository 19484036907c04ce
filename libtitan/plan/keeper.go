package plan

import (
	"fmt"
	"time"

	"titan/libtitan/alloc"
)

// Cached is a Keeper in a caching allocator.
type Cached struct {
	*alloc.Allocator
	blocks map[*Slot]*alloc.Block
	twin   *alloc.Virtual // whose streams are behind until a run ends; nil: a true device, which needs no telling
}

// NewCached is one without values.
func NewCached(a *alloc.Allocator) *Cached {
	return &Cached{Allocator: a, blocks: map[*Slot]*alloc.Block{}}
}

// NewTwin is one over a device without memory, with what lives as long as prog: what would be if the host put all of a run
// on a GPU's streams before the first move ends.
func NewTwin(prog *Program, o alloc.Options) (*Cached, *alloc.Virtual, error) {
	device := &alloc.Virtual{}
	a, err := alloc.New(device, o)
	if err != nil {
		return nil, nil, err
	}
	for _, f := range prog.Fixed() {
		if _, err := a.Malloc(alloc.Request{Bytes: int64(max(1, f.Bytes)), Owner: f.Owner}); err != nil {
			return nil, nil, err
		}
	}
	c := NewCached(a)
	c.twin = device
	return c, device, nil
}

// Owns is of what the arena would hold but gradients, which outlive the program's run.
func (c *Cached) Owns(s *Slot) bool { return s.Class == Arena }

// Take takes a block.
func (c *Cached) Take(s *Slot, owner string) (err error) {
	c.blocks[s], err = c.Malloc(alloc.Request{Bytes: int64(max(1, s.Bytes())), Stream: ComputeStream, Owner: owner})
	return err
}

// Drop frees it.
func (c *Cached) Drop(s *Slot) error {
	b := c.blocks[s]
	delete(c.blocks, s)
	if b == nil {
		return fmt.Errorf("plan: a value of %s is dropped and was not taken", s.FQN)
	}
	return c.Free(b)
}

// Use tells the allocator.
func (c *Cached) Use(s *Slot, on alloc.Stream) { c.Allocator.Use(c.blocks[s], on) }

// Wait tells the allocator.
func (c *Cached) Wait(on alloc.Stream, later int) { c.Allocator.Wait(ComputeStream, on, later) }

// End lets the twin's streams catch up.
func (c *Cached) End() {
	if c.twin != nil {
		c.twin.FinishAll()
	}
}

// Addr is where s lies; ok is false where it does not.
func (c *Cached) Addr(s *Slot) (addr uint64, ok bool) {
	b := c.blocks[s.Root()]
	if b == nil {
		return 0, false
	}
	return b.Addr(), true
}

// Placed is a Keeper that keeps nothing: values lie where the plan put them, and trace is told.
type Placed struct {
	trace          func(alloc.Event)
	arena, windows uint64
}

// placedBase is where the addresses of a planned arena start in a trace.
const placedBase = 1 << 40

// NewPlaced tells trace of all that lives as long as prog, of its arena and its windows.
func NewPlaced(prog *Program, trace func(alloc.Event)) *Placed {
	p := &Placed{trace: trace}
	total := 0
	fixed := prog.Fixed()
	for _, f := range fixed {
		total += roundUp(f.Bytes)
	}
	p.emit(alloc.SegmentAlloc, placedBase, total, "parameters and what belongs to them")
	at := uint64(placedBase)
	for _, f := range fixed {
		p.emit(alloc.Alloc, at, f.Bytes, f.Owner)
		at += uint64(roundUp(f.Bytes))
	}
	p.arena = at
	p.emit(alloc.SegmentAlloc, at, prog.ArenaBytes, "the planned arena")
	p.windows = at + uint64(roundUp(prog.ArenaBytes))
	p.emit(alloc.SegmentAlloc, p.windows, prog.WindowBytes, "windows")
	return p
}

func (p *Placed) emit(what alloc.Action, addr uint64, bytes int, owner string) {
	if bytes > 0 {
		p.trace(alloc.Event{Action: what, Addr: addr, Size: int64(bytes), Time: time.Now().UnixMicro(), Owner: owner})
	}
}

func (p *Placed) at(s *Slot) uint64 {
	if s.Class == Window {
		return p.windows + uint64(s.Offset)
	}
	return p.arena + uint64(s.Offset)
}

// Owns is of all that has a place in the arena or in the windows.
func (p *Placed) Owns(s *Slot) bool { return s.Bytes() > 0 }

// Take tells of s.
func (p *Placed) Take(s *Slot, owner string) error {
	p.emit(alloc.Alloc, p.at(s), s.Bytes(), owner)
	return nil
}

// Drop tells of its end.
func (p *Placed) Drop(s *Slot) error {
	p.emit(alloc.FreeRequested, p.at(s), s.Bytes(), "")
	p.emit(alloc.FreeCompleted, p.at(s), s.Bytes(), "")
	return nil
}

// Use tells that a move uses s.
func (p *Placed) Use(s *Slot, on alloc.Stream) {
	p.trace(alloc.Event{Action: alloc.Use, Addr: p.at(s), Size: int64(s.Bytes()), Other: on, Time: time.Now().UnixMicro()})
}

// Wait tells of a wait.
func (p *Placed) Wait(on alloc.Stream, later int) {
	p.trace(alloc.Event{Action: alloc.Wait, Size: int64(later), Other: on, Time: time.Now().UnixMicro()})
}

// End is the end of a run.
func (p *Placed) End() {}
