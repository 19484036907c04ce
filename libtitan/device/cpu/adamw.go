package cpu

import "math"

// AdamW is one step's settings (Loshchilov and Hutter, 2019). C1 and C2 are the bias corrections 1-Beta1^t and 1-Beta2^t.
// GradScale multiplies the gradient first (clipping, averaging); use 1 for none.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	C1, C2                             float64
	GradScale                          float64
}

// adamScalars are the float32 factors of an element, computed in float64 as torch.optim.AdamW does.
// The assembler reads them by offset.
type adamScalars struct {
	gradScale, decay, oneMinusBeta1, beta2, oneMinusBeta2, sqrtC2, eps, minusStep float32
}

// AdamW updates parameters p and moments m and v from gradients g, in place and in torch.optim.AdamW's order:
// p *= 1-lr*wd; m += (g-m)(1-beta1); v = v*beta2 + g²(1-beta2); p -= lr/C1 * m / (sqrt(v)/sqrt(C2) + eps).
func (e *Engine) AdamW(p, g, m, v []float32, o AdamW) {
	s := &adamScalars{
		gradScale: float32(o.GradScale), decay: float32(1 - o.LR*o.WeightDecay),
		oneMinusBeta1: float32(1 - o.Beta1), beta2: float32(o.Beta2), oneMinusBeta2: float32(1 - o.Beta2),
		sqrtC2: float32(math.Sqrt(o.C2)), eps: float32(o.Eps), minusStep: float32(-o.LR / o.C1),
	}
	e.For(len(p), flatGrain, func(lo, hi int) {
		e.k.adamw(p[lo:hi], g[lo:hi], m[lo:hi], v[lo:hi], s)
	})
}

func adamwGo(p, g, m, v []float32, s *adamScalars) {
	for i := range p {
		gi := g[i] * s.gradScale
		m[i] += (gi - m[i]) * s.oneMinusBeta1
		v[i] = v[i]*s.beta2 + gi*gi*s.oneMinusBeta2
		denom := float32(math.Sqrt(float64(v[i])))/s.sqrtC2 + s.eps
		p[i] = p[i]*s.decay + s.minusStep*m[i]/denom
	}
}
