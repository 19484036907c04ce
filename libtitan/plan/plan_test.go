package plan

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// No two slots that are live at once overlap; the arena is as large as the peak at least. So by time, and so by size.
func TestPlacementNeverOverlaps(t *testing.T) {
	for _, place := range []func([]*Slot) int{place, placeBySize} {
		placementNeverOverlaps(t, place)
	}
}

func placementNeverOverlaps(t *testing.T, place func([]*Slot) int) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 60).Draw(t, "slots")
		var slots []*Slot
		for range n {
			first := rapid.IntRange(0, 30).Draw(t, "first")
			slots = append(slots, &Slot{
				Type:  graph.Type{DType: dtype.Float32, Shape: []int{rapid.IntRange(0, 500).Draw(t, "elements")}},
				First: first, Last: first + rapid.IntRange(0, 10).Draw(t, "life"),
			})
		}
		slices.SortStableFunc(slots, func(a, b *Slot) int { return a.First - b.First })
		arena := place(slots)
		for step := range 41 {
			live := 0
			for i, a := range slots {
				if step < a.First || a.Last < step {
					continue
				}
				live += roundUp(a.Bytes())
				if a.Offset%align != 0 || a.Offset+a.Bytes() > arena {
					t.Fatalf("slot %d at %d of %d bytes is off in an arena of %d", i, a.Offset, a.Bytes(), arena)
				}
				for j, b := range slots[:i] {
					both := b.First <= step && step <= b.Last && a.Bytes() > 0 && b.Bytes() > 0
					if both && a.Offset < b.Offset+b.Bytes() && b.Offset < a.Offset+a.Bytes() {
						t.Fatalf("slots %d and %d overlap at step %d", i, j, step)
					}
				}
			}
			if live > arena {
				t.Fatalf("%d bytes live at step %d of an arena of %d", live, step, arena)
			}
		}
	})
}

func TestPlacementReusesWhatIsFree(t *testing.T) {
	slot := func(kib, first, last int) *Slot {
		return &Slot{Type: graph.Type{DType: dtype.Float32, Shape: []int{kib * 256}}, First: first, Last: last}
	}
	require.Equal(t, 8<<10, place([]*Slot{slot(4, 0, 1), slot(4, 1, 2), slot(4, 2, 3), slot(4, 3, 4)}))
}

// Large values that live long and small ones that come and go between them leave no holes.
func TestPlacementBySizeLeavesNoHoles(t *testing.T) {
	var slots []*Slot
	for i := range 20 {
		for _, kib := range []int{4, 64} {
			s := &Slot{Type: graph.Type{DType: dtype.Float32, Shape: []int{kib * 256}}, First: 2 * i, Last: 2*i + 1}
			if kib == 64 {
				s.Last = 100 - i
			}
			slots = append(slots, s)
		}
	}
	require.Equal(t, (20*64+4)<<10, placeBySize(slots))
}
