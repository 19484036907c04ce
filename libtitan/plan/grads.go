package plan

// PlaceGrads lays the parameters' gradients into the arena too, each live from the step that first writes it to the
// end of the step. They grow down from the arena's end while activations go, so both need less room together than
// apart. Grad slots have offsets then, and what they hold is lost when the next step begins.
func (p *Program) PlaceGrads() {
	if p.GradsInArena {
		return
	}
	p.GradsInArena = true
	top := make([]int, len(p.Steps)) // of what is live at each step
	for _, s := range p.Slots {
		for i := s.First; i <= s.Last; i++ {
			top[i] = max(top[i], s.Offset+roundUp(s.Bytes()))
		}
	}
	var grads []*Slot
	seen := map[*Slot]bool{}
	made := 0 // bytes
	for i := range p.Steps {
		for _, s := range p.Steps[i].Out {
			if s.Class == Grad && !seen[s] {
				seen[s] = true
				s.First, s.Last = i, len(p.Steps)-1
				made += roundUp(s.Bytes())
				s.Offset = -made // from the end
				grads = append(grads, s)
			}
		}
		p.ArenaBytes = max(p.ArenaBytes, top[i]+made)
	}
	for _, s := range grads {
		s.Offset += p.ArenaBytes
	}
	p.Slots = append(p.Slots, grads...)
}
