package plan

import "slices"

// KeepCopies takes the casts of stored parameters out of the step: what they make is kept from step to step, and who
// changes a parameter writes its copies too. Copies are the steps that make them anew from the parameters. A table that only
// embeddings read needs none: they cast the rows that they take. What FSDP gathers is cast for its gather, and not kept: see
// [Program.PlaceWindows].
func (p *Program) KeepCopies() {
	byName := map[string]*Slot{}
	inPlaceOf := map[*Slot]*Slot{}
	var steps []Step
	for i := range p.Steps {
		s := p.Steps[i]
		if !s.Prologue || s.Node.Op.Name != "cast" || s.In[0].Class != Param {
			steps = append(steps, s)
			continue
		}
		stored, out := s.In[0], s.Out[0]
		key := stored.Name + out.DType.String()
		switch have := byName[key]; {
		case p.viewed(out) || p.gathered(out):
			steps = append(steps, s)
		case have != nil:
			inPlaceOf[out] = have
		case p.onlyEmbedded(out):
			inPlaceOf[out] = stored
		default:
			byName[key] = out
			out.Class, out.Name = Copy, stored.Name
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

// CopyBytes is the memory of the copies.
func (p *Program) CopyBytes() int {
	n := 0
	for i := range p.Copies {
		n += p.Copies[i].Out[0].Bytes()
	}
	return n
}
