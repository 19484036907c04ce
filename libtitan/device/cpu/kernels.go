package cpu

import (
	"math"

	"titan/libtitan/dtype"
)

// tileFunc multiplies one strip of mr rows of A by successive panels of nr columns of B.
//
// With p in [0,k): A's element (r,p) is a[r*rs+p*ps]; panel j's row p starts at b[j*bp+p*bs] and holds nr
// consecutive floats; the tile goes to c[r*ldc+j*nr:][:nr] for all mr rows, added when add is set.
// Each element is one chain of fused multiply-adds over ascending p from zero, then one addition to C.
// All mr rows of A, nr columns of B and the whole tile of C must exist: pointers are not checked.
type tileFunc func(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)

// expScale is a factor c of an exponent, split for exp(c*x): c*log2(e) = c1+c2, and lo is the x below which the result is 0.
type expScale struct{ c1, c2, lo float32 }

func newExpScale(c float32) *expScale {
	l := float64(c) * math.Log2E
	c1 := float32(l)
	return &expScale{c1, float32(l - float64(c1)), float32(-127 / l)}
}

// kernels is one instruction set's implementation of the inner loops. Slices of one call have equal lengths.
type kernels struct {
	name   string
	mr, nr int
	tile   tileFunc // mr x nr
	tile6  tileFunc // 6 x 16, for products with few columns

	exp      func(y, x []float32, shift float32, s *expScale) float32      // y = exp(s*(x-shift)), returns the sum
	softGrad func(s, dp []float32, shift, delta float32, sc *expScale)     // s = p = exp(sc*(s-shift)); dp = p*(dp-delta)
	max      func(x []float32) float32                                     // -Inf when empty
	dot      func(x, y []float32) float32                                  // sum x*y
	dot3     func(x, y, z []float32) float32                               // sum x*y*z
	scale    func(y, x []float32, s float32)                               // y = x*s
	scaleMul func(y, x, w []float32, s float32)                            // y = x*s*w
	normGrad func(dx, dw, dy, x, w []float32, r, s float32)                // dx = dy*w*r - x*s; dw += dy*x*r
	rope     func(y, x, cos, sin []float32, sign float32)                  // one head: pairs (2i,2i+1), len(cos) = len(x)/2
	silu     func(y, a, b []float32)                                       // y = a*sigmoid(a)*b
	siluGrad func(da, db, dy, a, b []float32)                              //
	add      func(y, a, b []float32)                                       // y = a+b
	adamw    func(p, g, m, v []float32, s *adamScalars)                    //
	widen    func(y []float32, x []uint16)                                 //
	narrow   func(y []uint16, x []float32)                                 //
	packCols func(dst []float32, src []float32, stride, rows, cols, w int) // dst[c*w+r] = src[r*stride+c]
}

// scalar is the portable set, and the reference that tests hold the others to.
func scalarKernels() *kernels {
	return &kernels{
		name: "scalar", mr: 6, nr: 16, tile: tile6x16Go, tile6: tile6x16Go,
		exp: expGo, softGrad: softGradGo, max: maxGo, dot: dotGo, dot3: dot3Go, scale: scaleGo, scaleMul: scaleMulGo,
		normGrad: normGradGo, rope: ropeGo, silu: siluGo, siluGrad: siluGradGo, add: addGo, adamw: adamwGo,
		widen: dtype.WidenBF16, narrow: dtype.NarrowBF16, packCols: packColsGo,
	}
}

func expGo(y, x []float32, shift float32, s *expScale) float32 {
	var sum float32
	c := (float64(s.c1) + float64(s.c2)) * math.Ln2
	for i, v := range x {
		y[i] = float32(math.Exp(c * float64(v-shift)))
		sum += y[i]
	}
	return sum
}

func softGradGo(s, dp []float32, shift, delta float32, sc *expScale) {
	expGo(s, s, shift, sc)
	for i, p := range s {
		dp[i] = p * (dp[i] - delta)
	}
}

func maxGo(x []float32) float32 {
	m := float32(math.Inf(-1))
	for _, v := range x {
		m = max(m, v)
	}
	return m
}

func dotGo(x, y []float32) float32 {
	var s [8]float32 // as the vector kernels: eight partial sums keep the rounding error small
	for i, v := range x {
		s[i&7] += v * y[i]
	}
	return sum8(s)
}

func dot3Go(x, y, z []float32) float32 {
	var s [8]float32
	for i, v := range x {
		s[i&7] += v * y[i] * z[i]
	}
	return sum8(s)
}

func sum8(s [8]float32) float32 {
	return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

func scaleGo(y, x []float32, s float32) {
	for i, v := range x {
		y[i] = v * s
	}
}

func scaleMulGo(y, x, w []float32, s float32) {
	for i, v := range x {
		y[i] = v * s * w[i]
	}
}

func normGradGo(dx, dw, dy, x, w []float32, r, s float32) {
	for i, v := range x {
		g := dy[i]
		dx[i] = g*w[i]*r - v*s
		dw[i] += g * v * r
	}
}

func ropeGo(y, x, cos, sin []float32, sign float32) {
	for i, c := range cos {
		s := sign * sin[i]
		x0, x1 := x[2*i], x[2*i+1]
		y[2*i], y[2*i+1] = x0*c-x1*s, x1*c+x0*s
	}
}

func sigmoid(a float32) float32 { return float32(1 / (1 + math.Exp(-float64(a)))) }

func siluGo(y, a, b []float32) {
	for i, v := range a {
		y[i] = v * sigmoid(v) * b[i]
	}
}

func siluGradGo(da, db, dy, a, b []float32) {
	for i, v := range a {
		s, g := sigmoid(v), dy[i]
		da[i], db[i] = g*b[i]*s*(1+v*(1-s)), g*v*s
	}
}

func addGo(y, a, b []float32) {
	for i, v := range a {
		y[i] = v + b[i]
	}
}

func packColsGo(dst, src []float32, stride, rows, cols, w int) {
	for r := range rows {
		for c, v := range src[r*stride:][:cols] {
			dst[c*w+r] = v
		}
	}
}
