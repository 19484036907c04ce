package plan

// PlaceGrads lays the parameters' gradients into the arena too, each live from the step that first writes it to the
// end of the step, and places all values anew, by their size: gradients come while activations go, so both need less
// room together than apart. Grad slots have offsets then, and what they hold is lost when the next step begins.
func (p *Program) PlaceGrads() {
	if p.GradsInArena {
		return
	}
	p.GradsInArena = true
	seen := map[*Slot]bool{}
	for i := range p.Steps {
		for _, s := range p.Steps[i].Out {
			if s.Class == Grad && !seen[s] {
				seen[s] = true
				s.First, s.Last = i, len(p.Steps)-1
				p.Slots = append(p.Slots, s)
			}
		}
	}
	p.ArenaBytes = placeBySize(p.Slots)
}
