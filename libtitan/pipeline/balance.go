package pipeline

import (
	"fmt"
	"math"
	"slices"
)

// Weights are what the parts of a model weigh, in one unit: the embedding, each layer, and norm with lm_head. They have
// NumLayers+2 entries.
type Weights struct {
	Fixed    []int64 // once
	Held     []int64 // once for each microbatch in flight on the stage; nil: nothing
	InFlight []int   // microbatches, by stage
}

// Balance cuts a model into numStages runs of parts so that the heaviest stage weighs least. Among such cuts it takes
// the one with the least sum of squares, and of those the one whose early stages are largest. It returns the modules of
// each stage, and what they weigh.
func Balance(numLayers, numStages int, w Weights) (stages [][]string, weights []int64, err error) {
	parts := numLayers + 2
	switch {
	case numLayers < 1 || numLayers > MaxLayers:
		return nil, nil, fmt.Errorf("balance: %d layers: a model has 1 to %d", numLayers, MaxLayers)
	case numStages < 1 || numStages > parts:
		return nil, nil, fmt.Errorf("balance: %d stages: a model of %d layers, embedding and head has 1 to %d", numStages, numLayers, parts)
	case len(w.Fixed) != parts || w.Held != nil && (len(w.Held) != parts || len(w.InFlight) != numStages):
		return nil, nil, fmt.Errorf("balance: weights of %d parts and %d stages, but the model has %d and %d", len(w.Fixed), len(w.InFlight), parts, numStages)
	}
	b := newBalancer(w, numStages)
	cuts := b.cuts(b.least())
	names := Modules(numLayers)
	for s := range numStages {
		from, to := cuts[s], cuts[s+1]
		weights = append(weights, b.weight(s, from, to))
		if to == parts {
			to++ // norm and lm_head are one part
		}
		stages = append(stages, names[from:to:to])
	}
	return stages, weights, nil
}

// StageWeights is what stages, cut from the whole model in order, weigh.
func StageWeights(stages [][]string, w Weights) []int64 {
	b := newBalancer(w, len(stages))
	out := make([]int64, len(stages))
	from := 0
	for s, names := range stages {
		to := min(from+len(names), b.parts) // norm and lm_head are one part, which lm_head's stage has
		if to > from && names[len(names)-1] == "norm" {
			to--
		}
		out[s] = b.weight(s, from, to)
		from = to
	}
	return out
}

// balancer knows the weight of any run of parts on any stage.
type balancer struct {
	parts, stages int
	fixed, held   []int64 // of the parts before each
	inFlight      []int
}

func newBalancer(w Weights, stages int) *balancer {
	b := &balancer{parts: len(w.Fixed), stages: stages, inFlight: w.InFlight}
	b.fixed, b.held = sums(w.Fixed), sums(w.Held)
	return b
}

func sums(list []int64) []int64 {
	out := []int64{0}
	for i, x := range list {
		out = append(out, out[i]+x)
	}
	return out
}

// weight is that of parts from to to on stage s.
func (b *balancer) weight(s, from, to int) int64 {
	x := b.fixed[to] - b.fixed[from]
	if len(b.held) > 1 {
		x += int64(b.inFlight[s]) * (b.held[to] - b.held[from])
	}
	return x
}

// least is the weight that some stage must have: the least of the heaviest, over all cuts. best[to] is that of the
// first s stages with the parts before to. As a stage starts later it weighs less, and those before it more: where the
// two cross is the best start.
func (b *balancer) least() int64 {
	best := make([]int64, b.parts+1)
	for to := range best {
		best[to] = b.weight(0, 0, to)
	}
	for s := 1; s < b.stages; s++ {
		next := slices.Repeat([]int64{math.MaxInt64}, b.parts+1)
		for to := s + 1; to <= b.parts; to++ {
			low, high := s, to-1 // the first start from which the stages before weigh as much
			for low < high {
				if mid := (low + high) / 2; best[mid] >= b.weight(s, mid, to) {
					high = mid
				} else {
					low = mid + 1
				}
			}
			next[to] = max(best[low], b.weight(s, low, to))
			if low > s {
				next[to] = min(next[to], max(best[low-1], b.weight(s, low-1, to)))
			}
		}
		best = next
	}
	return best[b.parts]
}

// cuts finds where stages start, and the end of the last, such that none weighs more than most, with the least sum of
// squares. rest[s][from] is that sum of stages s and later, with the parts from from on.
func (b *balancer) cuts(most int64) []int {
	rest := make([][]float64, b.stages+1)
	end := make([][]int32, b.stages) // of stage s when it starts at from
	rest[b.stages] = slices.Repeat([]float64{math.Inf(1)}, b.parts+1)
	rest[b.stages][b.parts] = 0
	for s := b.stages - 1; s >= 0; s-- {
		rest[s] = slices.Repeat([]float64{math.Inf(1)}, b.parts+1)
		end[s] = make([]int32, b.parts+1)
		for from := s; from <= b.parts-(b.stages-s); from++ {
			for to := from + 1; to <= b.parts-(b.stages-1-s); to++ {
				x := b.weight(s, from, to)
				if x > most {
					break
				}
				if sum := float64(x)*float64(x) + rest[s+1][to]; sum < math.Inf(1) && sum <= rest[s][from] {
					rest[s][from], end[s][from] = sum, int32(to)
				}
			}
		}
	}
	cuts := []int{0}
	for s := range b.stages {
		cuts = append(cuts, int(end[s][cuts[s]]))
	}
	return cuts
}

// Uneven is how much heavier the heaviest of weights is than their mean: 1 where all are equal.
func Uneven(weights []int64) float64 {
	sum := 0.0
	for _, x := range weights {
		sum += float64(x)
	}
	if sum == 0 {
		return 1
	}
	return float64(slices.Max(weights)) * float64(len(weights)) / sum
}
