package plan

import (
	"slices"

	"titan/libtitan/dtype"
	"titan/libtitan/op"
)

// KeepCopies takes out of the step what follows from one stored parameter alone: its casts, and the largest magnitude of all of it,
// from which a float8 scale is made. They are kept from step to step, and who changes a parameter writes them too. Copies are the
// steps that make them anew from the parameters. A table that only embeddings read needs no cast: they cast the rows that they take.
// What FSDP gathers is cast for its gather, and not kept: see [Program.PlaceWindows].
func (p *Program) KeepCopies() {
	type key struct {
		parameter string
		class     Class
		dtype     dtype.DType
	}
	made := map[key]*Slot{}
	inPlaceOf := map[*Slot]*Slot{}
	var steps []Step
	for i := range p.Steps {
		s := p.Steps[i]
		class, ok := s.kept()
		if !ok {
			steps = append(steps, s)
			continue
		}
		stored, out := s.In[0], s.Out[0]
		k := key{stored.Name, class, out.DType}
		switch have := made[k]; {
		case p.viewed(out) || p.gathered(out):
			steps = append(steps, s)
		case have != nil:
			inPlaceOf[out] = have
		case p.onlyEmbedded(out):
			inPlaceOf[out] = stored
		default:
			made[k] = out
			out.Class, out.Name = class, stored.Name
			p.Copies = append(p.Copies, s)
		}
	}
	for i := range steps {
		for j, in := range steps[i].In {
			if to := inPlaceOf[in]; to != nil {
				steps[i].In[j] = to
			}
		}
	}
	p.Steps = steps
	p.Slots = slices.DeleteFunc(p.Slots, func(s *Slot) bool { return s.Class != Arena && s.Class != Grad || inPlaceOf[s] != nil })
	p.relive()
}

// kept is the class of what s makes if it can be kept from step to step.
func (s *Step) kept() (c Class, ok bool) {
	if !s.Prologue || s.In[0].Class != Param {
		return Arena, false
	}
	if a, ok := s.Node.Attr.(op.AmaxAttr); ok {
		return Largest, a.Per == op.PerTensor
	}
	return Copy, s.Node.Op.Name == "cast"
}

// onlyEmbedded reports whether all that reads a slot are embeddings, of which it is the table.
func (p *Program) onlyEmbedded(table *Slot) bool {
	for i := range p.Steps {
		s := &p.Steps[i]
		for j, in := range s.In {
			if in.Root() == table && (in != table || j != 1 || s.Kind != Compute || s.Node.Op.Name != "embedding") {
				return false
			}
		}
	}
	return true
}

// viewed reports whether a step reads a view of a slot.
func (p *Program) viewed(slot *Slot) bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool {
		return slices.ContainsFunc(s.In, func(in *Slot) bool { return in.Of == slot })
	})
}

// gathered reports whether FSDP gathers a slot.
func (p *Program) gathered(slot *Slot) bool {
	return slices.ContainsFunc(p.Steps, func(s Step) bool { return s.gathers() && slices.Contains(s.In, slot) })
}

// CopyOwner is who has the memory of a copy or a largest magnitude.
func CopyOwner(s *Slot) string {
	return s.Name + map[Class]string{Copy: ", narrow", Largest: ", largest magnitude"}[s.Class] + " < parameters"
}

// CopyBytes is the memory of what is kept.
func (p *Program) CopyBytes() int {
	n := 0
	for i := range p.Copies {
		n += p.Copies[i].Out[0].Bytes()
	}
	return n
}
