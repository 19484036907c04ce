package plan

import "sort"

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
	used := b.prog.Slots[:0]
	for _, s := range b.prog.Slots {
		if seen[s] {
			used = append(used, s)
		}
	}
	b.prog.Slots = used
	sort.SliceStable(used, func(i, j int) bool { return used[i].First < used[j].First })
}
