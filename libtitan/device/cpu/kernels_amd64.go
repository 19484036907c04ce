package cpu

import (
	"math"

	"golang.org/x/sys/cpu"
)

// bestKernels picks the widest set this CPU runs.
func bestKernels() *kernels {
	sets := availableKernels()
	return sets[len(sets)-1]
}

// availableKernels lists the sets this CPU runs, slowest first.
func availableKernels() []*kernels {
	sets := []*kernels{scalarKernels()}
	if !cpu.X86.HasAVX2 || !cpu.X86.HasFMA {
		return sets
	}
	sets = append(sets, avx2Kernels())
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ {
		sets = append(sets, avx512Kernels())
	}
	return sets
}

func avx2Kernels() *kernels {
	k := scalarKernels()
	k.name = "avx2"
	k.tile, k.tile6 = tile6x16, tile6x16
	k.exp2, k.softmaxRows, k.softGradRows, k.max, k.dot, k.dot3, k.sumSquares = exp2Vec, softmaxRowsVec, softGradRowsVec, maxVec, dotVec, dot3Vec, sumSquaresVec
	k.scale, k.scaleMul, k.normGrad, k.rope = scaleVec, scaleMulVec, normGradVec, ropeVec
	k.sigmoid, k.silu, k.siluGrad, k.add, k.sub, k.adamw = sigmoidVec, siluVec, siluGradVec, addVec, subVec, adamwVec
	k.widen, k.narrow = widenVec, narrowVec
	k.copyRows, k.transpose, k.packStrips = copyRowsVec, transposeVec, packStripsVec
	return k
}

func avx512Kernels() *kernels {
	k := avx2Kernels()
	k.name = "avx512"
	k.mr, k.nr, k.tile = 12, 32, tile12x32
	if cpu.X86.HasAVX512BF16 {
		k.name, k.tilePairs = "avx512bf16", tilePairs12x32
	}
	return k
}

// The assembler checks no bounds and works on multiples of 8 elements. The wrappers below check, give it the body of a slice,
// and do the rest in arrays of 8 or in portable Go.

//go:noescape
func tile6x16(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)

//go:noescape
func tile12x32(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)

//go:noescape
func tilePairs12x32(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool)

//go:noescape
func exp2AVX2(n int, y, x *float32, mul, sub float32) float32

//go:noescape
func softmaxRowsAVX2(rows, first, n int, p *float32, ld int, mul float32, top, down, sum *float32)

//go:noescape
func softGradRowsAVX2(rows, first, n int, s, dp *float32, ld int, mul float32, shift, delta *float32)

//go:noescape
func maxAVX2(n int, x *float32) float32

//go:noescape
func dotAVX2(n int, x, y *float32) float32

//go:noescape
func dot3AVX2(n int, x, y, z *float32) float32

//go:noescape
func sumSquaresAVX2(n int, x *float32) float64

//go:noescape
func scaleAVX2(n int, y, x *float32, s float32)

//go:noescape
func scaleMulAVX2(n int, y, x, w *float32, s float32)

//go:noescape
func normGradAVX2(n int, dx, dw, dy, x, w *float32, r, s float32)

//go:noescape
func ropeAVX2(heads, n int, y, x, cos, sin *float32, sign float32)

//go:noescape
func sigmoidAVX2(n int, y, x *float32)

//go:noescape
func siluAVX2(n int, y, a, b *float32)

//go:noescape
func siluGradAVX2(n int, da, db, dy, a, b *float32)

//go:noescape
func addAVX2(n int, y, a, b *float32)

//go:noescape
func subAVX2(n int, y, a, b *float32)

//go:noescape
func adamwAVX2(n int, p, grad, m, v *float32, s *adamScalars)

//go:noescape
func widenAVX2(n int, y *float32, x *uint16)

//go:noescape
func narrowAVX2(n int, y *uint16, x *float32)

//go:noescape
func copyRowsAVX2(rows, n int, dst *float32, dld int, src *float32, sld int)

//go:noescape
func packStripsAVX2(rows, strips, w int, dst, src *float32, sld int)

//go:noescape
func transpose8AVX2(n int, dst *float32, dld int, src *float32, sld int)

// body is the part of n elements that fills whole vectors.
func body(n int) int { return n &^ 7 }

func exp2Vec(y, x []float32, mul, sub float32) float32 {
	n := body(len(x))
	var sum float32
	if n > 0 {
		sum = exp2AVX2(n, &y[0], &x[0], mul, sub)
	}
	if n < len(x) {
		var t [8]float32
		copy(t[:], x[n:])
		exp2AVX2(8, &t[0], &t[0], mul, sub)
		for _, v := range t[:copy(y[n:], t[:])] {
			sum += v
		}
	}
	return sum
}

func softmaxRowsVec(first, n int, p []float32, ld int, mul float32, top, down, sum []float32) {
	softmaxRowsAVX2(len(sum), first, n, &p[:len(sum)*ld][0], ld, mul, &top[0], &down[0], &sum[0])
}

func softGradRowsVec(first, n int, s, dp []float32, ld int, mul float32, shift, delta []float32) {
	rows := len(shift)
	softGradRowsAVX2(rows, first, n, &s[:rows*ld][0], &dp[:rows*ld][0], ld, mul, &shift[0], &delta[0])
}

func maxVec(x []float32) float32 {
	n := body(len(x))
	m := float32(math.Inf(-1))
	if n > 0 {
		m = maxAVX2(n, &x[0])
	}
	for _, v := range x[n:] {
		m = max(m, v)
	}
	return m
}

func dotVec(x, y []float32) float32 {
	n := body(len(x))
	var s float32
	if n > 0 {
		s = dotAVX2(n, &x[0], &y[0])
	}
	return s + dotGo(x[n:], y[n:])
}

func dot3Vec(x, y, z []float32) float32 {
	n := body(len(x))
	var s float32
	if n > 0 {
		s = dot3AVX2(n, &x[0], &y[0], &z[0])
	}
	return s + dot3Go(x[n:], y[n:], z[n:])
}

func sumSquaresVec(x []float32) float64 {
	n := body(len(x))
	var s float64
	if n > 0 {
		s = sumSquaresAVX2(n, &x[0])
	}
	return s + sumSquaresGo(x[n:])
}

func scaleVec(y, x []float32, s float32) {
	n := body(len(x))
	if n > 0 {
		scaleAVX2(n, &y[0], &x[0], s)
	}
	scaleGo(y[n:], x[n:], s)
}

func scaleMulVec(y, x, w []float32, s float32) {
	n := body(len(x))
	if n > 0 {
		scaleMulAVX2(n, &y[0], &x[0], &w[0], s)
	}
	scaleMulGo(y[n:], x[n:], w[n:], s)
}

func normGradVec(dx, dw, dy, x, w []float32, r, s float32) {
	n := body(len(x))
	if n > 0 {
		normGradAVX2(n, &dx[0], &dw[0], &dy[0], &x[0], &w[0], r, s)
	}
	normGradGo(dx[n:], dw[n:], dy[n:], x[n:], w[n:], r, s)
}

func ropeVec(y, x, cos, sin []float32, sign float32) {
	h := 2 * len(cos)
	if h == 0 || h%8 != 0 || len(x) == 0 {
		ropeGo(y, x, cos, sin, sign)
		return
	}
	ropeAVX2(len(x)/h, h, &y[0], &x[0], &cos[0], &sin[0], sign)
}

func sigmoidVec(y, x []float32) {
	n := body(len(x))
	if n > 0 {
		sigmoidAVX2(n, &y[0], &x[0])
	}
	if n < len(x) {
		var t [8]float32
		copy(t[:], x[n:])
		sigmoidAVX2(8, &t[0], &t[0])
		copy(y[n:], t[:])
	}
}

func siluVec(y, a, b []float32) {
	n := body(len(a))
	if n > 0 {
		siluAVX2(n, &y[0], &a[0], &b[0])
	}
	if n < len(a) {
		var t, u [8]float32
		copy(t[:], a[n:])
		copy(u[:], b[n:])
		siluAVX2(8, &t[0], &t[0], &u[0])
		copy(y[n:], t[:])
	}
}

func siluGradVec(da, db, dy, a, b []float32) {
	n := body(len(a))
	if n > 0 {
		siluGradAVX2(n, &da[0], &db[0], &dy[0], &a[0], &b[0])
	}
	if n < len(a) {
		var ta, tb, g, da8, db8 [8]float32
		copy(ta[:], a[n:])
		copy(tb[:], b[n:])
		copy(g[:], dy[n:])
		siluGradAVX2(8, &da8[0], &db8[0], &g[0], &ta[0], &tb[0])
		copy(da[n:], da8[:])
		copy(db[n:], db8[:])
	}
}

func addVec(y, a, b []float32) {
	n := body(len(a))
	if n > 0 {
		addAVX2(n, &y[0], &a[0], &b[0])
	}
	addGo(y[n:], a[n:], b[n:])
}

func subVec(y, a, b []float32) {
	n := body(len(a))
	if n > 0 {
		subAVX2(n, &y[0], &a[0], &b[0])
	}
	subGo(y[n:], a[n:], b[n:])
}

func adamwVec(p, g, m, v []float32, s *adamScalars) {
	n := body(len(p))
	if n > 0 {
		adamwAVX2(n, &p[0], &g[0], &m[0], &v[0], s)
	}
	adamwGo(p[n:], g[n:], m[n:], v[n:], s)
}

func widenVec(y []float32, x []uint16) {
	n := body(len(x))
	if n > 0 {
		widenAVX2(n, &y[0], &x[0])
	}
	for i, b := range x[n:] {
		y[n+i] = math.Float32frombits(uint32(b) << 16)
	}
}

func narrowVec(y []uint16, x []float32) {
	n := body(len(x))
	if n > 0 {
		narrowAVX2(n, &y[0], &x[0])
	}
	if n < len(x) {
		var t [8]float32
		var u [8]uint16
		copy(t[:], x[n:])
		narrowAVX2(8, &u[0], &t[0])
		copy(y[n:], u[:])
	}
}

func copyRowsVec(dst []float32, dld int, src []float32, sld, rows, cols int) {
	if rows == 0 || cols%8 != 0 || cols == 0 {
		copyRowsGo(dst, dld, src, sld, rows, cols)
		return
	}
	dst, src = dst[:(rows-1)*dld+cols], src[:(rows-1)*sld+cols]
	copyRowsAVX2(rows, cols, &dst[0], dld, &src[0], sld)
}

func packStripsVec(dst, src []float32, sld, rows, cols, w int) {
	whole := cols / w
	if rows > 0 && whole > 0 {
		packStripsAVX2(rows, whole, w, &dst[:whole*w*rows][0], &src[:(rows-1)*sld+cols][0], sld)
	}
	if rest := cols - whole*w; rest > 0 && rows > 0 {
		packStripsGo(dst[whole*w*rows:], src[whole*w:], sld, rows, rest, w)
	}
}

func transposeVec(dst []float32, dld int, src []float32, sld, rows, cols int) {
	r, n := 0, body(cols)
	if rows > 0 && cols > 0 {
		dst, src = dst[:(cols-1)*dld+rows], src[:(rows-1)*sld+cols]
	}
	for ; n > 0 && r+8 <= rows; r += 8 {
		transpose8AVX2(n, &dst[r], dld, &src[r*sld], sld)
		if n < cols {
			transposeGo(dst[n*dld+r:], dld, src[r*sld+n:], sld, 8, cols-n)
		}
	}
	if r < rows {
		transposeGo(dst[r:], dld, src[r*sld:], sld, rows-r, cols)
	}
}
