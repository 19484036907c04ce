package exec

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/device/cpu"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// Over all owners a query meets each key at or before its position once and no other, whatever the order of positions; and
// of two runs of different positions all keys are seen or none.
func TestMeeting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranks := rapid.IntRange(2, 5).Draw(t, "ranks")
		seq := 2 * ranks * rapid.IntRange(1, 4).Draw(t, "piece")
		batch := rapid.IntRange(1, 2).Draw(t, "batch")
		pieces := rapid.SampledFrom([]int{0, 2 * ranks}).Draw(t, "pieces")
		me := rapid.IntRange(0, ranks-1).Draw(t, "me")
		mesh := placement.Mesh{1, 1, ranks, 1}
		q := tensor{Type: graph.Type{Shape: []int{batch, seq / ranks, 2, 4}}, logical: []int{batch, seq, 2, 4}, at: make([]placement.Range, 4)}
		q.at[1] = placement.Chunk(seq, ranks, me)
		m := newMeeting(&plan.Program{Where: plan.Where{Mesh: mesh, Coord: mesh.Coord(me)}}, op.AttentionAttr{Pieces: pieces}, q, q)
		require.Equal(t, me, m.me)
		seen := map[[3]int]int{}
		for owner := range ranks {
			first := placement.Chunk(seq, ranks, owner).Start
			m.pairs(owner, func(b, qRow, kRow int, s cpu.AttnShape) {
				all := s.KStart+s.SeqK-1 <= s.QStart
				require.True(t, all || s.KStart == s.QStart && s.SeqK == s.SeqQ, "%+v", s)
				for i := range s.SeqQ {
					require.Equal(t, s.QStart+i, placement.HeadTail(seq, pieces, q.at[1].Start+qRow+i))
					for j := range s.SeqK {
						require.Equal(t, s.KStart+j, placement.HeadTail(seq, pieces, first+kRow+j))
						if s.KStart+j <= s.QStart+i {
							seen[[3]int{b, s.QStart + i, s.KStart + j}]++
						}
					}
				}
			})
		}
		for b := range batch {
			for i := range seq / ranks {
				position := placement.HeadTail(seq, pieces, q.at[1].Start+i)
				for key := range seq {
					want := 0
					if key <= position {
						want = 1
					}
					require.Equal(t, want, seen[[3]int{b, position, key}], "query %d, key %d", position, key)
				}
			}
		}
	})
}
