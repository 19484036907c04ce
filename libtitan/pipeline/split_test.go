package pipeline

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// layersIn counts the layers of each stage.
func layersIn(stages [][]string) (counts []int) {
	for _, s := range stages {
		n := 0
		for _, fqn := range s {
			if strings.HasPrefix(fqn, "layers.") {
				n++
			}
		}
		counts = append(counts, n)
	}
	return counts
}

func rep(n, times int) []int { return slices.Repeat([]int{n}, times) }

// What torchtitan's rule gives.
func TestSplitCounts(t *testing.T) {
	for _, c := range []struct {
		stages, layers int
		want           []int
	}{
		{1, 6, []int{6}},
		{2, 6, []int{3, 3}},
		{4, 6, []int{1, 2, 2, 1}},
		{8, 6, []int{0, 1, 1, 1, 1, 1, 1, 0}},
		{5, 6, []int{1, 2, 2, 1, 0}},
		{4, 32, []int{8, 9, 8, 7}},
		{8, 32, []int{4, 5, 4, 4, 4, 4, 4, 3}},
		{8, 80, []int{10, 11, 10, 10, 10, 10, 10, 9}},
		{16, 126, slices.Concat([]int{7}, rep(8, 14), []int{7})},
		{4, 30, []int{7, 8, 8, 7}},
		{4, 61, []int{15, 16, 16, 14}},
	} {
		stages, err := Split(Cut{c.layers, c.stages, 1, 1})
		require.NoError(t, err)
		require.Equal(t, c.want, layersIn(stages), "%d layers over %d stages", c.layers, c.stages)
		require.NoError(t, CheckStages(stages, c.layers))
	}
}

func TestSplitRefuses(t *testing.T) {
	for _, c := range []struct {
		cut  Cut
		want string
	}{
		{Cut{3, 8, 1, 1}, "split: 8 stages are more than the 5 effective layers (3, and 1 + 1 for embedding and head): use at most 5 stages"},
		{Cut{0, 1, 1, 1}, "split: 0 layers: a model has 1 to 16384"},
		{Cut{1 << 40, 1, 1, 1}, "split: 1099511627776 layers: a model has 1 to 16384"},
		{Cut{4, 0, 1, 1}, "split: 0 stages: a model has at least 1"},
		{Cut{4, 2, -1, 1}, "split: first and last stage less -1 and 1 layers: they must be 0 to 16384"},
		{Cut{8, 4, 5, 1}, "split: first stage less 5 layers, but a stage has 3: use at most 3, or fewer stages"},
		{Cut{8, 4, 1, 5}, "split: last stage less 5 layers, but a stage has 3: use at most 3, or fewer stages"},
	} {
		_, err := Split(c.cut)
		require.EqualError(t, err, c.want)
	}
}

// Every module is in one stage, in order, whatever the cut.
func TestSplitCovers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Cut{rapid.IntRange(1, 130).Draw(t, "layers"), rapid.IntRange(1, 40).Draw(t, "stages"), rapid.IntRange(0, 4).Draw(t, "first"), rapid.IntRange(0, 4).Draw(t, "last")}
		stages, err := Split(c)
		if err != nil {
			each := (c.NumLayers + c.FirstWeight + c.LastWeight) / c.NumStages
			require.True(t, each == 0 || c.FirstWeight > each || c.LastWeight > each, "%v: %v", c, err)
			return
		}
		require.Len(t, stages, c.NumStages)
		require.Equal(t, Modules(c.NumLayers), slices.Concat(stages...))
		require.NoError(t, CheckStages(stages, c.NumLayers))
	})
}

func TestNumStages(t *testing.T) {
	n, err := NumStages(6, 2, 2, 1, 1)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	_, err = NumStages(6, 3, 2, 1, 1)
	require.ErrorContains(t, err, "8 effective layers at 3 per stage make 3 stages, which do not divide among 2 pipeline ranks")
	_, err = NumStages(6, 0, 2, 1, 1)
	require.ErrorContains(t, err, "must be at least 1")
}

func TestCheckStagesRefuses(t *testing.T) {
	model := func() [][]string {
		stages, err := Split(Cut{12, 2, 1, 1})
		require.NoError(t, err)
		return stages
	}
	for _, c := range []struct {
		name   string
		change func(s [][]string)
		want   string
	}{
		{"missing", func(s [][]string) { s[0] = slices.DeleteFunc(s[0], func(f string) bool { return f == "layers.1" }) }, "layers.1 is in no stage"},
		{"twice", func(s [][]string) { s[1] = append([]string{"layers.1"}, s[1]...) }, "layers.1 is in stage 0 and again in stage 1"},
		{"twice in one", func(s [][]string) { s[1] = append([]string{"norm"}, s[1]...) }, "norm is in stage 1 and again in stage 1"},
		{"cut", func(s [][]string) { s[0][5] = "layers.4.attention.wq" }, "stage 0: layers.4.attention.wq cuts inside layers.4: stages hold whole modules; layers.4 is in no stage"},
		{"unknown", func(s [][]string) { s[0][5] = "layers.12" }, "stage 0: layers.12 is no module of a model of 12 layers (tok_embeddings, layers.0 to layers.11, norm, lm_head); layers.4 is in no stage"},
		{"empty", func(s [][]string) { s[0], s[1] = nil, slices.Concat(s[0], s[1]) }, "stage 0 is empty"},
		{"order", func(s [][]string) { s[0][1], s[0][2] = s[0][2], s[0][1] }, "modules are out of order: the model runs tok_embeddings, layers.0, "},
		{"swapped", func(s [][]string) { s[0], s[1] = s[1], s[0] }, "modules are out of order: "},
		{"all gone", func(s [][]string) { s[0], s[1] = []string{"tok_embeddings"}, []string{"norm"} }, "layers.0 is in no stage; layers.1 is in no stage; layers.2 is in no stage; layers.3 is in no stage; layers.4 is in no stage; layers.5 is in no stage; layers.6 is in no stage; layers.7 is in no stage; and 5 more"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := model()
			c.change(s)
			require.ErrorContains(t, CheckStages(s, 12), c.want)
		})
	}
}

func TestStageRanks(t *testing.T) {
	var loop, v []int
	for stage := range 8 {
		loop, v = append(loop, LoopRank(stage, 4)), append(v, VRank(stage, 4))
	}
	require.Equal(t, []int{0, 1, 2, 3, 0, 1, 2, 3}, loop)
	require.Equal(t, []int{0, 1, 2, 3, 3, 2, 1, 0}, v)
}
