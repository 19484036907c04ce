package placement

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestChunksAreTorchs(t *testing.T) {
	for _, c := range []struct {
		n, k int
		want []int
	}{
		{6, 4, []int{2, 2, 2, 0}}, {5, 4, []int{2, 2, 1, 0}}, {9, 8, []int{2, 2, 2, 2, 1, 0, 0, 0}}, {1, 4, []int{1, 0, 0, 0}},
		{73, 4, []int{19, 19, 19, 16}}, {259, 4, []int{65, 65, 65, 64}}, {0, 3, []int{0, 0, 0}},
	} {
		start := 0
		for i, want := range c.want {
			require.Equal(t, Range{start, want}, Chunk(c.n, c.k, i), "%d of %d of %d", i, c.k, c.n)
			start += want
		}
	}
}

// TP slices first, FSDP within: each rank's rows are one range of the whole tensor, as PyTorch's strided shards are.
func TestFSDPOverTP(t *testing.T) {
	m := Mesh{1, 2, 1, 2}
	l := Replicated(2).Cut(0, TP).Cut(0, DPShard)
	var got []Range
	for rank := range 4 {
		got = append(got, m.Local([]int{86, 32}, l, m.Coord(rank))[0])
	}
	require.Equal(t, []Range{{0, 22}, {43, 22}, {22, 21}, {65, 21}}, got)
	require.Equal(t, "S(0,tp) S(0,dp_shard)", l.String())
}

func drawMesh(t *rapid.T) Mesh {
	var m Mesh
	for i := range m {
		m[i] = rapid.IntRange(1, 4).Draw(t, "degree")
	}
	return m
}

// drawLayout cuts the dims of shape by some of the axes.
func drawLayout(t *rapid.T, dims int) Layout {
	l := Replicated(dims)
	left := []Axes{DPReplicate, DPShard, CP, TP, DPShard | CP}
	var used Axes
	for _, a := range rapid.Permutation(left).Draw(t, "axes") {
		if used&a != 0 || rapid.Bool().Draw(t, "copy") {
			continue
		}
		used |= a
		l = l.Cut(rapid.IntRange(0, dims-1).Draw(t, "dim"), a)
	}
	return l
}

// The parts of a layout cover every element once for each copy that is kept.
func TestLayoutsCoverEveryElement(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMesh(t)
		shape := []int{rapid.IntRange(0, 9).Draw(t, "n"), rapid.IntRange(0, 9).Draw(t, "k")}
		l := drawLayout(t, 2)
		seen := make([]int, shape[0]*shape[1])
		for rank := range m.World() {
			r := m.Local(shape, l, m.Coord(rank))
			for i := range r[0].Len {
				for j := range r[1].Len {
					seen[(r[0].Start+i)*shape[1]+r[1].Start+j]++
				}
			}
		}
		copies := m.World() / m.Size(l.Sharded())
		for i, n := range seen {
			if n != copies {
				t.Fatalf("element %d is held %d times, want %d: %v on %v", i, n, copies, l, m)
			}
		}
	})
}

func TestCoordinatesAndGroups(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := drawMesh(t)
		rank := rapid.IntRange(0, m.World()-1).Draw(t, "rank")
		c := m.Coord(rank)
		require.Equal(t, rank, m.Rank(c))
		for a := Axes(0); a < 1<<NumAxes; a++ {
			g := m.Group(c, a)
			require.Equal(t, rank, g[m.Index(c, a)])
			require.Len(t, g, m.Size(a))
			require.IsIncreasing(t, append([]int{-1}, g...))
		}
	})
	m := Mesh{2, 2, 1, 2}
	require.Equal(t, []int{1, 3, 5, 7}, m.Group(m.Coord(3), DPReplicate|DPShard))
	require.Equal(t, []int{2, 3}, m.Group(m.Coord(3), TP))
}
