package cpu

import (
	"math"
	"testing"
)

// TestAdamW follows 20 steps of the same update in float64.
func TestAdamW(t *testing.T) {
	const n = flatGrain + 13
	for _, e := range engines(1, 2) {
		p, m, v := random(1, n), make([]float32, n), make([]float32, n)
		p64, m64, v64 := f64(p), make([]float64, n), make([]float64, n)
		o := AdamW{LR: 8e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, GradScale: 0.7}
		for step := 1; step <= 20; step++ {
			o.C1, o.C2 = 1-math.Pow(o.Beta1, float64(step)), 1-math.Pow(o.Beta2, float64(step))
			g := random(uint64(step)+10, n)
			e.AdamW(p, g, m, v, o)
			for i := range g {
				gi := float64(g[i]) * o.GradScale
				p64[i] *= 1 - o.LR*o.WeightDecay
				m64[i] = o.Beta1*m64[i] + (1-o.Beta1)*gi
				v64[i] = o.Beta2*v64[i] + (1-o.Beta2)*gi*gi
				p64[i] -= o.LR / o.C1 * m64[i] / (math.Sqrt(v64[i])/math.Sqrt(o.C2) + o.Eps)
			}
		}
		near(t, p64, p, 1e-6, e.k.name)
		near(t, m64, m, 1e-6, e.k.name)
		near(t, v64, v, 1e-6, e.k.name)
	}
}
