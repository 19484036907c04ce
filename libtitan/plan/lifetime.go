package plan

import (
	"cmp"
	"slices"
)

// lifetimes finds the first and last step that touches each arena slot. What the prologue makes is made again in the
// next step, so it too ends with its last use.
func (b *builder) lifetimes() {
	seen := map[*Slot]bool{}
	touch := func(s *Slot, at int) {
		s = s.Root()
		if !seen[s] {
			seen[s], s.First = true, at
		}
		s.Last = at
	}
	for i, st := range b.prog.Steps {
		for _, s := range st.In {
			touch(s, i)
		}
		for _, s := range st.Out {
			touch(s, i)
		}
		if st.Scratch != nil {
			touch(st.Scratch, i)
		}
	}
	b.prog.Slots, b.prog.Windows = inUse(b.prog.Slots, seen), inUse(b.prog.Windows, seen)
}

// inUse are the slots that a step touches, in order of First.
func inUse(slots []*Slot, seen map[*Slot]bool) []*Slot {
	slots = slices.DeleteFunc(slots, func(s *Slot) bool { return !seen[s] })
	slices.SortStableFunc(slots, func(a, b *Slot) int { return cmp.Compare(a.First, b.First) })
	return slots
}
