package plan

import (
	"cmp"
	"slices"
)

func roundUp(n int) int { return (n + align - 1) / align * align }

// hole is a free range of the arena.
type hole struct{ start, end int }

// place gives each slot an offset, in the order in which they come to life: the smallest hole that holds it, the
// lowest of equals, or new room at the end. It returns the size of the arena. slots are in order of First.
func place(slots []*Slot) int {
	dying := slices.Clone(slots)
	slices.SortStableFunc(dying, func(a, b *Slot) int { return cmp.Compare(a.Last, b.Last) })
	arena := 0
	var holes []hole // in order, none touching another
	for _, s := range slots {
		for len(dying) > 0 && dying[0].Last < s.First {
			holes = release(holes, hole{dying[0].Offset, dying[0].Offset + roundUp(dying[0].Bytes())})
			dying = dying[1:]
		}
		size, best := roundUp(s.Bytes()), -1
		for i, h := range holes {
			if room := h.end - h.start; room >= size && (best < 0 || room < holes[best].end-holes[best].start) {
				best = i
			}
		}
		switch last := len(holes) - 1; {
		case best >= 0:
			s.Offset = holes[best].start
			if holes[best].start += size; holes[best].start == holes[best].end {
				holes = slices.Delete(holes, best, best+1)
			}
		case last >= 0 && holes[last].end == arena: // grow the hole at the end
			s.Offset = holes[last].start
			arena, holes = s.Offset+size, holes[:last]
		default:
			s.Offset = arena
			arena += size
		}
	}
	return arena
}

// release adds a free range, joined with its neighbours.
func release(holes []hole, h hole) []hole {
	if h.start == h.end {
		return holes
	}
	i, _ := slices.BinarySearchFunc(holes, h, func(a, b hole) int { return cmp.Compare(a.start, b.start) })
	if i < len(holes) && holes[i].start == h.end {
		h.end = holes[i].end
		holes = slices.Delete(holes, i, i+1)
	}
	if i > 0 && holes[i-1].end == h.start {
		holes[i-1].end = h.end
		return holes
	}
	return slices.Insert(holes, i, h)
}
