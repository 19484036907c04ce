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

// Usage is the memory of a program over its steps.
type Usage struct {
	Live      []int // arena bytes live at each step
	PeakBytes int   // the most of them
	PeakStep  int
	Fixed     [NumClasses]int // bytes that live as long as the program, by class
}

// Measure adds up what prog holds.
func Measure(prog *Program) Usage {
	u := Usage{Live: make([]int, len(prog.Steps)+1)}
	for _, s := range prog.Slots {
		u.Live[s.First] += roundUp(s.Bytes())
		u.Live[s.Last+1] -= roundUp(s.Bytes())
	}
	for i := range u.Live {
		if i > 0 {
			u.Live[i] += u.Live[i-1]
		}
		if u.Live[i] > u.PeakBytes {
			u.PeakBytes, u.PeakStep = u.Live[i], i
		}
	}
	u.Live = u.Live[:len(prog.Steps)]
	u.Fixed[Const] = prog.ConstBytes
	seen := map[string]bool{}
	for _, st := range prog.Stages {
		for _, p := range st.Params {
			if !seen[p.Name()] {
				seen[p.Name()] = true
				u.Fixed[Param] += p.Bytes()
				u.Fixed[Grad] += p.Bytes()
			}
		}
	}
	return u
}
