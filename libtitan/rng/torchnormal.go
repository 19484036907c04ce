package rng

import (
	"math"

	"titan/libtitan/dtype"
)

// boxMuller is the number of values that PyTorch makes at once from as many uniform draws: draw j and draw j+8
// give the values j (cosine) and j+8 (sine).
const boxMuller = 16

// Normal is a float32 tensor's normal_(mean, std); randn is normal_(0, 1). From 16 values on it goes by blocks
// of 16; if the last block is short, the last 16 values are made again from 16 more draws.
func (g *Torch) Normal(dst []float32, mean, std float64) {
	if len(dst) < boxMuller {
		for i := range dst {
			dst[i] = float32(g.scalarNormal(mean, std))
		}
		return
	}
	fillBlocks(dst, func(b []float32) {
		for i := range b {
			b[i] = unit(g.Uint32())
		}
	}, func(b []float32) { normalBlock((*[boxMuller]float32)(b), float32(mean), float32(std)) })
}

// Normal64 is a float64 tensor's normal_(mean, std).
func (g *Torch) Normal64(dst []float64, mean, std float64) {
	if len(dst) < boxMuller {
		for i := range dst {
			dst[i] = g.scalarNormal(mean, std)
		}
		return
	}
	fillBlocks(dst, func(b []float64) { g.Uniform64(b, 0, 1) }, func(b []float64) {
		for j := range boxMuller / 2 {
			radius := math.Sqrt(-2 * preciseLog(1-b[j]))
			sin, cos := preciseSinCos(2 * math.Pi * b[j+8])
			b[j] = math.FMA(float64(radius*cos), std, mean)
			b[j+8] = math.FMA(float64(radius*sin), std, mean)
		}
	})
}

// NormalBF16 is a bfloat16 tensor's normal_(mean, std), rounded after every step.
func (g *Torch) NormalBF16(dst []uint16, mean, std float64) {
	if len(dst) < boxMuller {
		for i := range dst {
			dst[i] = dtype.BF16(float32(g.scalarNormal(mean, std)))
		}
		return
	}
	m, s := bf16(float32(mean)), bf16(float32(std))
	fillBlocks(dst, func(b []uint16) { g.UniformBF16(b, 0, 1) }, func(b []uint16) {
		for j := range boxMuller / 2 {
			u := bf16(1 - dtype.F32(b[j]))
			radius := bf16(-2 * bf16(float32(preciseLog(float64(u)))))
			radius = bf16(float32(math.Sqrt(float64(radius))))
			theta := bf16(float32(2 * math.Pi * float64(dtype.F32(b[j+8]))))
			sin, cos := preciseSinCos(float64(theta))
			b[j] = dtype.BF16(bf16(bf16(radius*bf16(float32(cos)))*s) + m)
			b[j+8] = dtype.BF16(bf16(bf16(radius*bf16(float32(sin)))*s) + m)
		}
	})
}

// fillBlocks draws all of dst, turns its blocks, and, where the length is no multiple of 16, draws and turns the
// last 16 values again.
func fillBlocks[T any](dst []T, draw, turn func([]T)) {
	draw(dst)
	for b := dst; len(b) >= boxMuller; b = b[boxMuller:] {
		turn(b[:boxMuller])
	}
	if len(dst)%boxMuller != 0 {
		last := dst[len(dst)-boxMuller:]
		draw(last)
		turn(last)
	}
}

// scalarNormal is one value of at::normal_distribution<double>: it makes two and keeps the second.
func (g *Torch) scalarNormal(mean, std float64) float64 {
	z := 0.0
	if g.spare != nil {
		z, g.spare = *g.spare, nil
	} else {
		u1, u2 := unit64(g.Uint64()), unit64(g.Uint64())
		radius := math.Sqrt(-2 * preciseLog(1-u2))
		sin, cos := preciseSinCos(2 * math.Pi * u1)
		z, sin = radius*cos, radius*sin
		g.spare = &sin
	}
	return float64(z*std) + mean
}

// normalBlock turns 16 uniform draws into normal values, with the roundings of PyTorch's normal_fill_16_AVX2 as
// GCC compiles it: every product that feeds one sum is fused with it.
func normalBlock(b *[boxMuller]float32, mean, std float32) {
	for j := range boxMuller / 2 {
		radius := float32(math.Sqrt(float64(-2 * cephesLog(1-b[j]))))
		sin, cos := cephesSinCos(float32(2*math.Pi) * b[j+8])
		b[j] = fma32(radius*cos, std, mean)
		b[j+8] = fma32(radius*sin, std, mean)
	}
}

// cephesLog is ln x for 0 < x <= 1: log256_ps of PyTorch's avx_mathfun.h, which is Cephes' logf.
func cephesLog(x float32) float32 {
	const sqrtHalf = 0.707106781186547524
	b := math.Float32bits(x)
	e := float32(int(b>>23) - 126)
	x = math.Float32frombits(b&0x7fffff | 0x3f000000)
	if x < sqrtHalf {
		e--
		x = x - 1 + x
	} else {
		x--
	}
	y := float32(7.0376836292e-2)
	for _, c := range [...]float32{-1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1} {
		y = fma32(y, x, c)
	}
	z := x * x
	y = y * x
	y = fma32(y, z, float32(e*-2.12194440e-4))
	y = fma32(z, -0.5, y)
	return fma32(e, 0.693359375, x+y)
}

// cephesSinCos is the sine and cosine of 0 <= x < 2 pi: sincos256_ps of PyTorch's avx_mathfun.h.
func cephesSinCos(x float32) (sin, cos float32) {
	octant := (int(x*1.27323954473516) + 1) &^ 1 // of pi/4, rounded up to even
	y := float32(octant)
	x = fma32(y, -0.78515625, x)
	x = fma32(y, -2.4187564849853515625e-4, x)
	x = fma32(y, -3.77489497744594108e-8, x)
	z := x * x

	c := fma32(2.443315711809948e-5, z, -1.388731625493765e-3)
	c = fma32(c, z, 4.166664568298827e-2)
	c = float32(c * z)
	c = fma32(c, z, float32(z*-0.5)) + 1

	s := fma32(-1.9515295891e-4, z, 8.3321608736e-3)
	s = fma32(s, z, -1.6666654611e-1)
	s = float32(s * z)
	s = fma32(s, x, x)

	if octant&2 != 0 {
		s, c = c, s
	}
	if octant&4 != 0 {
		s = -s
	}
	if (octant+2)&4 != 0 {
		c = -c
	}
	return s, c
}
