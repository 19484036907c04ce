package optim

import (
	"math"

	"titan/libtitan/manifest"
)

// AdamW is Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in PyTorch's order of operations:
//
//	p *= 1 - lr·wd;  m = β1·m + (1-β1)·g;  v = β2·v + (1-β2)·g²
//	p -= lr/(1-β1^t) · m/(√v/√(1-β2^t) + eps)
type AdamW struct{ manifest.Optimizer }

// Scalars are one step's constants, the same for every element.
type Scalars struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	C1, C2                             float64 // 1-β1^t, 1-β2^t
	GradScale                          float64 // gradients are multiplied by it first: clipping
}

// At gives the constants of update t, counted from 1.
func (a AdamW) At(t int, factor, gradScale float64) Scalars {
	return Scalars{
		LR: a.LR * factor, Beta1: a.Beta1, Beta2: a.Beta2, Eps: a.Eps, WeightDecay: a.WeightDecay,
		C1:        1 - math.Pow(a.Beta1, float64(t)),
		C2:        1 - math.Pow(a.Beta2, float64(t)),
		GradScale: gradScale,
	}
}

// ClipScale is what gradients of global L2 norm are multiplied by so that it does not exceed maxNorm,
// PyTorch's rule with its 1e-6.
func ClipScale(norm, maxNorm float64) float64 { return min(1, maxNorm/(norm+1e-6)) }

// Norm combines per-parameter sums of squares, in their order, into the global L2 norm.
func Norm(squares []float64) float64 {
	var sum float64
	for _, s := range squares {
		sum += s
	}
	return math.Sqrt(sum)
}
