package plan

import "sort"

func roundUp(n int) int { return (n + align - 1) / align * align }

// place gives each slot the lowest offset that is free while it is live, the largest slots first, and returns
// the size of the arena.
func place(slots []*Slot) int {
	order := append([]*Slot(nil), slots...)
	sort.SliceStable(order, func(i, j int) bool { return order[i].Bytes() > order[j].Bytes() })
	arena := 0
	var busy []*Slot
	for i, s := range order {
		busy = busy[:0]
		for _, o := range order[:i] {
			if o.First <= s.Last && s.First <= o.Last {
				busy = append(busy, o)
			}
		}
		sort.Slice(busy, func(i, j int) bool { return busy[i].Offset < busy[j].Offset })
		s.Offset = 0
		for _, o := range busy {
			if s.Offset+roundUp(s.Bytes()) <= o.Offset {
				break
			}
			s.Offset = max(s.Offset, o.Offset+roundUp(o.Bytes()))
		}
		arena = max(arena, s.Offset+roundUp(s.Bytes()))
	}
	return arena
}
