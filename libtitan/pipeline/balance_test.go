package pipeline

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// bruteCuts tries every way to cut parts into stages, and finds the least weight of the heaviest and then the least
// sum of squares.
func bruteCuts(b *balancer) (least int64, squares float64) {
	least, squares = math.MaxInt64, math.Inf(1)
	var try func(s, from int, most int64, sum float64)
	try = func(s, from int, most int64, sum float64) {
		if s == b.stages {
			if from == b.parts && (most < least || most == least && sum < squares) {
				least, squares = most, sum
			}
			return
		}
		for to := from + 1; to <= b.parts; to++ {
			x := b.weight(s, from, to)
			try(s+1, to, max(most, x), sum+float64(x)*float64(x))
		}
	}
	try(0, 0, 0, 0)
	return least, squares
}

// Every model of up to 12 layers in up to 6 stages, with several weights, as brute force cuts it: equal layers, a head
// of any weight, and layers that differ; with what is in flight on early stages of 1F1B, and in a V.
func TestBalanceIsOptimal(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for layers := 1; layers <= 12; layers++ {
		for stages := 1; stages <= min(6, layers+2); stages++ {
			for _, embed := range []int64{0, 1, 30} {
				for _, head := range []int64{0, 7, 24, 100} {
					for _, uneven := range []bool{false, true} {
						w := Weights{Fixed: slices.Repeat([]int64{10}, layers+2)}
						w.Fixed[0], w.Fixed[layers+1] = embed, head
						for i := 1; uneven && i <= layers; i++ {
							w.Fixed[i] = r.Int64N(20)
						}
						if uneven {
							w.Held = slices.Repeat([]int64{3}, layers+2)
							for s := range stages {
								w.InFlight = append(w.InFlight, []int{stages - s, s%2 + 1}[layers%2])
							}
						}
						got, weights, err := Balance(layers, stages, w)
						require.NoError(t, err)
						require.NoError(t, CheckStages(got, layers))
						squares := 0.0
						for _, x := range weights {
							squares += float64(x) * float64(x)
						}
						least, want := bruteCuts(newBalancer(w, stages))
						require.Equal(t, least, slices.Max(weights), "%d layers, %d stages, %+v", layers, stages, w)
						require.Equal(t, want, squares, "%d layers, %d stages, %+v", layers, stages, w)
					}
				}
			}
		}
	}
}

func TestBalanceRefuses(t *testing.T) {
	for _, c := range []struct {
		layers, stages int
		w              Weights
		want           string
	}{
		{0, 1, Weights{}, "balance: 0 layers: a model has 1 to 16384"},
		{2, 5, Weights{Fixed: make([]int64, 4)}, "balance: 5 stages: a model of 2 layers, embedding and head has 1 to 4"},
		{2, 2, Weights{Fixed: make([]int64, 3)}, "balance: weights of 3 parts and 0 stages, but the model has 4 and 2"},
		{2, 2, Weights{Fixed: make([]int64, 4), Held: make([]int64, 4)}, "balance: weights of 4 parts and 0 stages, but the model has 4 and 2"},
	} {
		_, _, err := Balance(c.layers, c.stages, c.w)
		require.EqualError(t, err, c.want)
	}
	require.Equal(t, 1.5, Uneven([]int64{1, 3, 2}))
	require.Equal(t, 1.0, Uneven([]int64{0, 0}))
}

func BenchmarkBalance(b *testing.B) {
	w := Weights{Fixed: slices.Repeat([]int64{10}, MaxLayers+2)}
	for b.Loop() {
		_, _, err := Balance(MaxLayers, 64, w)
		require.NoError(b, err)
	}
}
