package plan

import (
	"slices"

	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// PlaceWindows gives what FSDP gathers beside what is computed a region of its own, the windows, which lies at one
// place on all ranks of the group, so that copy engines can fill it. A shard is made right before its gather, in its
// place among the shards of the others, so that nothing is copied within the device: a cast of a parameter is done for
// each gather instead of once a step, and its result is no longer held in between. Tensors whose shards differ in
// length stay where they are, and so do those gathered along other axes than the first are. It comes after [Program.Overlap].
func (p *Program) PlaceWindows() {
	makers, axes := p.makers(), placement.Axes(0)
	var steps []Step
	again := map[*Slot]bool{} // what is made before its gather
	for i := range p.Steps {
		s := p.Steps[i]
		if s.Aside && s.gathers() {
			a := s.Node.Attr.(op.MoveAttr)
			if axes == 0 {
				axes = a.Axes
			}
			if a.Axes == axes {
				steps = append(steps, p.intoWindows(&s, makers, again)...)
			}
		}
		steps = append(steps, s)
	}
	p.Steps = steps
	p.dropUnread(again)
	p.relive()
}

// makers are the steps of the prologue, by what they make.
func (p *Program) makers() map[*Slot]*Step {
	out := map[*Slot]*Step{}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Prologue {
			for _, o := range s.Out {
				out[o] = s
			}
		}
	}
	return out
}

// intoWindows lays the tensors of a gather into the windows, and gives the steps that make their shards there.
func (p *Program) intoWindows(s *Step, makers map[*Slot]*Step, again map[*Slot]bool) (before []Step) {
	s.In, s.Out = slices.Clone(s.In), slices.Clone(s.Out)
	for k, in := range s.In {
		maker := makers[in]
		if !p.even(s, k) || maker == nil && in.Class != Param {
			continue
		}
		at := p.intoWindow(s, k)
		if maker == nil {
			before = append(before, Step{Kind: Accumulate, In: []*Slot{in}, Out: []*Slot{at}, Add: []bool{false}, Action: s.Action})
		} else {
			step := *maker
			step.Out, step.Action, step.Prologue = slices.Clone(maker.Out), s.Action, false
			step.Out[slices.Index(maker.Out, in)] = at
			before = append(before, step)
			again[in] = true
		}
		s.In[k] = at
	}
	return before
}

// intoWindow moves tensor k of a gather to the windows, and gives the slot of this rank's shard in it.
func (p *Program) intoWindow(s *Step, k int) *Slot {
	out := s.Out[k]
	if out.Class != Window {
		out.Class = Window
		p.Windows = append(p.Windows, out)
		p.Slots = slices.DeleteFunc(p.Slots, func(o *Slot) bool { return o == out })
	}
	at := *s.In[k]
	at.Class, at.Of, at.Name = Window, out, ""
	at.Start = p.Mesh.Index(p.Coord, s.Node.Attr.(op.MoveAttr).Axes) * at.Bytes()
	return &at
}

// vector is the bytes that kernels write at once.
const vector = 16

// even reports whether the ranks' shards of tensor k of a gather are of one length, aligned, and follow each other.
func (p *Program) even(s *Step, k int) bool {
	a, v := s.Node.Attr.(op.MoveAttr), s.Node.In[k]
	in, out := s.In[k], s.Out[k]
	if out.Of != nil || out.Class != Arena && out.Class != Window || !contiguous(out.Shape, a.From) || in.Bytes()%vector != 0 {
		return false
	}
	for i := range p.Mesh.Size(a.Axes) {
		shape := p.Mesh.LocalShape(v.Shape, v.Layout, p.Mesh.With(p.Coord, a.Axes, i))
		if !slices.Equal(shape, in.Shape) {
			return false
		}
	}
	return in.Bytes() > 0
}

// dropUnread leaves out the steps of the prologue whose results are all made again, or not read before they are.
func (p *Program) dropUnread(again map[*Slot]bool) {
	made, early := map[*Slot]bool{}, map[*Slot]bool{} // made again; read before that
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, in := range s.In {
			early[in.Root()] = early[in.Root()] || !made[in.Root()]
		}
		for _, o := range s.Out {
			made[o.Root()] = made[o.Root()] || !s.Prologue
		}
	}
	p.Steps = slices.DeleteFunc(p.Steps, func(s Step) bool {
		return s.Prologue && slices.ContainsFunc(s.Out, func(o *Slot) bool { return again[o] }) &&
			!slices.ContainsFunc(s.Out, func(o *Slot) bool { return early[o.Root()] })
	})
}
