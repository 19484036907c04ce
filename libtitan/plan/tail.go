package plan

import (
	"cmp"
	"slices"
)

// beginLast has the reductions at the end of a step begin before the first of them is waited for: what is computed there, which
// is the norm of the gradients that the step has by then, holds up none of them.
func (p *Program) beginLast() {
	at := len(p.Steps)
	for at > 0 && (p.Steps[at-1].Kind == Accumulate || p.Steps[at-1].reduces()) {
		at--
	}
	turn := func(s Step) int {
		if s.reduces() {
			return 0
		}
		return 1
	}
	slices.SortStableFunc(p.Steps[at:], func(a, b Step) int { return cmp.Compare(turn(a), turn(b)) })
}

// reduces reports whether a step reduces gradients beside what follows.
func (s *Step) reduces() bool { return s.Aside && !s.gathers() }

// Tail is the end of p that waits for reductions beside the work, adds up what they leave and does nothing else: its first step,
// and by parameter the gradients that are whole before it. Without such an end it is len(p.Steps), and none.
func (p *Program) Tail() (first int, whole map[string]bool) {
	reduced := map[*Slot]bool{}
	for i := range p.Steps {
		if s := &p.Steps[i]; s.reduces() {
			for _, out := range s.Out {
				reduced[out] = true
			}
		}
	}
	first = len(p.Steps)
	for first > 0 && p.Steps[first-1].Kind == Accumulate && reduced[p.Steps[first-1].In[0]] {
		first--
	}
	if first == len(p.Steps) {
		return first, nil
	}
	whole = map[string]bool{}
	grads, _ := p.gradSlots()
	for _, s := range grads {
		for _, named := range s.Named() {
			whole[named.Name] = true
		}
	}
	for _, s := range p.Steps[first:] {
		delete(whole, s.Out[0].Name)
	}
	return first, whole
}
