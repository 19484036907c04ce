package plan

import "slices"

// ReduceIntoGrads has reductions write a gradient where it stays, if it is the first that is added there. The step that would
// copy it is left: where it is, the reduction is waited for.
func (p *Program) ReduceIntoGrads() {
	for i := range p.Steps {
		s := &p.Steps[i]
		if !s.reduces() {
			continue
		}
		s.Out = slices.Clone(s.Out)
		for j := i + 1; j < len(p.Steps); j++ {
			sum := &p.Steps[j]
			if sum.Kind != Accumulate || sum.Add[0] {
				continue
			}
			if k := slices.Index(s.Out, sum.In[0]); k >= 0 {
				s.Out[k], sum.In = sum.Out[0], sum.Out
			}
		}
	}
	p.relive()
}

// PlaceGrads lays the parameters' gradients into the arena too, each live from the step that first writes it to the
// end of the step, and places all values anew, by their size: gradients come while activations go, so both need less
// room together than apart. Grad slots have offsets then, and what they hold is lost when the next step begins.
func (p *Program) PlaceGrads() {
	if p.GradsInArena {
		return
	}
	p.GradsInArena = true
	grads, at := p.gradSlots()
	for i, s := range grads {
		s.First, s.Last = at[i], len(p.Steps)-1
	}
	p.Slots = append(p.Slots, grads...)
	p.ArenaBytes = placeBySize(p.Slots)
}

// gradSlots are the gradients that p makes, with where their rows lie, in order, and by which step each is first written.
func (p *Program) gradSlots() (slots []*Slot, at []int) {
	seen := map[*Slot]bool{}
	for i := range p.Steps {
		for _, s := range p.Steps[i].Out {
			if (s.Class == Grad || s.Class == Rows) && !seen[s] {
				seen[s] = true
				slots, at = append(slots, s), append(at, i)
			}
		}
	}
	return slots, at
}
