package mesh

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestRanksInTorchtitansOrder(t *testing.T) {
	m, err := New(Axis{PP, 2}, Axis{DPReplicate, 1}, Axis{DPShard, 2}, Axis{CP, 1}, Axis{TP, 2})
	require.NoError(t, err)
	require.Equal(t, 8, m.Size())
	require.Equal(t, "pp 2 x dp_shard 2 x tp 2", m.String())
	require.Equal(t, []int{1, 0, 0, 0, 1}, m.Coords(5))
	require.Equal(t, 5, m.Rank(1, 0, 0, 0, 1))
	require.Equal(t, []int{4, 5}, m.Group(5, TP))
	require.Equal(t, []int{5, 7}, m.Group(5, DPShard, CP))
	require.Equal(t, []int{1, 5}, m.Group(5, PP))
	require.Equal(t, []int{4, 5, 6, 7}, m.Group(6, DPShard, TP))
	require.Equal(t, []int{4, 6, 5, 7}, m.Group(6, TP, DPShard))
	require.Equal(t, 2, m.Index(6, DPShard, TP))
	require.Equal(t, [][]int{{0, 2}, {1, 3}, {4, 6}, {5, 7}}, m.Groups(DPShard))
	require.Equal(t, []int{3}, m.Group(3, "ep"))
	require.Equal(t, 1, m.Degree("ep"))
	require.Equal(t, 0, m.Coord(3, "ep"))
}

func TestNewRefuses(t *testing.T) {
	for want, axes := range map[string][]Axis{
		"mesh: axis tp has degree 0: it must be at least 1": {{TP, 0}},
		"mesh: axis tp is given twice":                      {{TP, 2}, {PP, 1}, {TP, 2}},
		"mesh: more than 1048576 ranks":                     {{TP, 1 << 40}, {PP, 1 << 40}},
	} {
		_, err := New(axes...)
		require.EqualError(t, err, want)
	}
	m, err := New()
	require.NoError(t, err)
	require.Equal(t, 1, m.Size())
	require.Equal(t, "1 rank", m.String())
}

// Coordinates and ranks are one to one, and the groups along any axes part the ranks into equal sets.
func TestGroupsPartTheRanks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		axes := make([]Axis, 0, 5)
		for _, name := range rapid.Permutation(Order()).Draw(t, "order") {
			axes = append(axes, Axis{name, rapid.IntRange(1, 4).Draw(t, name)})
		}
		m, err := New(axes...)
		require.NoError(t, err)
		for rank := range m.Size() {
			require.Equal(t, rank, m.Rank(m.Coords(rank)...))
		}
		some := rapid.Permutation(Order()).Draw(t, "axes")[:rapid.IntRange(0, 5).Draw(t, "count")]
		size := 1
		for _, a := range some {
			size *= m.Degree(a)
		}
		var all []int
		for _, g := range m.Groups(some...) {
			require.Len(t, g, size)
			for i, rank := range g {
				require.Equal(t, g, m.Group(rank, some...))
				require.Equal(t, i, m.Index(rank, some...))
			}
			all = append(all, g...)
		}
		slices.Sort(all)
		require.Len(t, slices.Compact(all), m.Size())
	})
}
