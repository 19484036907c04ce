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

// kernels is one instruction set's implementation of the inner loops. Slices of one call have equal lengths.
//
// normGrad, silu and siluGrad are what the programs of their ops say (see package scalar), in one pass: the same operations in
// the same order, each rounded, none of them a fused multiply-add, wherever in a slice an element stands. So an op has the bits
// in float32 that it has in a fused program.
type kernels struct {
	name   string
	mr, nr int
	tile   tileFunc // mr x nr
	tile6  tileFunc // 6 x 16, for products with few columns

	// tilePairs is a tile on pairs of bfloat16 (see [gemm]), nil where the CPU has no instruction for them. Its strides
	// count pairs; each step adds both products of a pair, the order being the instruction's.
	tilePairs tileFunc

	exp2 func(y, x []float32, mul, sub float32) float32 // y = 2^(mul*x-sub), returns the sum
	// softmaxRows and softGradRows work on blocks of scores, rows of n, ld apart. Row r sees its first first+r scores (none when
	// that is negative, all beyond n); the others become 0, up to where a strip of 6 after n may reach.
	//
	// softmaxRows: with m the larger of top[r] and mul times the row's largest score, row = 2^(mul*row - m), sum[r] is its sum,
	// down[r] = top[r] - m, top[r] = m. A row that sees nothing keeps top and gets sum = down = 0.
	softmaxRows func(first, n int, p []float32, ld int, mul float32, top, down, sum []float32)
	// softGradRows: row of s = p = 2^(mul*row - shift[r]), row of dp = p*(row - delta[r]).
	softGradRows func(first, n int, s, dp []float32, ld int, mul float32, shift, delta []float32)

	max        func(x []float32) float32                                        // -Inf when empty
	dot        func(x, y []float32) float32                                     // sum x*y
	dot3       func(x, y, z []float32) float32                                  // sum x*y*z
	sumSquares func(x []float32) float64                                        // in float64
	scale      func(y, x []float32, s float32)                                  // y = x*s
	scaleMul   func(y, x, w []float32, s float32)                               // y = x*s*w
	normGrad   func(dx, dw, dy, x, w []float32, r, s float32)                   // dx = dy*r*w - x*s; dw += dy*r*x
	rope       func(y, x, cos, sin []float32, sign float32)                     // the heads of a token: pairs (2i,2i+1) of each, len(cos) = H/2
	sigmoid    func(y, x []float32)                                             // y = 1/(1+e^-x)
	silu       func(y, a, b []float32)                                          // y = a*sigmoid(a)*b
	siluGrad   func(da, db, dy, a, b []float32)                                 // its backward, in the order of op's swiglu_backward
	add, sub   func(y, a, b []float32)                                          // y = a+b, y = a-b
	adamw      func(p, g, m, v []float32, s *adamScalars)                       // see Engine.AdamW
	widen      func(y []float32, x []uint16)                                    // bfloat16 to float32
	narrow     func(y []uint16, x []float32)                                    // and back, ties to even
	copyRows   func(dst []float32, dld int, src []float32, sld, rows, cols int) // dst[r*dld+c] = src[r*sld+c]
	// packStrips cuts columns into strips of w, one after the other: dst[(c/w*rows+r)*w+c%w] = src[r*sld+c], zeros up to a whole strip.
	packStrips func(dst, src []float32, sld, rows, cols, w int)
	transpose  func(dst []float32, dld int, src []float32, sld, rows, cols int) // dst[c*dld+r] = src[r*sld+c]
}

// scalar is the portable set, and the reference that tests hold the others to.
func scalarKernels() *kernels {
	return &kernels{
		name: "scalar", mr: 6, nr: 16, tile: tile6x16Go, tile6: tile6x16Go,
		exp2: exp2Go, softmaxRows: softmaxRowsGo, softGradRows: softGradRowsGo,
		max: maxGo, dot: dotGo, dot3: dot3Go, sumSquares: sumSquaresGo, scale: scaleGo, scaleMul: scaleMulGo,
		normGrad: normGradGo, rope: ropeGo, sigmoid: sigmoidGo, silu: siluGo, siluGrad: siluGradGo, add: addGo, sub: subGo, adamw: adamwGo,
		widen: dtype.WidenBF16, narrow: dtype.NarrowBF16, copyRows: copyRowsGo, transpose: transposeGo, packStrips: packStripsGo,
	}
}

func exp2Go(y, x []float32, mul, sub float32) float32 {
	var sum float64
	for i, v := range x {
		y[i] = float32(math.Exp2(float64(mul)*float64(v) - float64(sub)))
		sum += float64(y[i])
	}
	return float32(sum)
}

// seen is how many of n scores the row sees; see softmaxRows.
func seen(first, r, n int) int { return min(max(first+r, 0), n) }

func softmaxRowsGo(first, n int, p []float32, ld int, mul float32, top, down, sum []float32) {
	for r := range sum {
		row, n := p[r*ld:][:ld], seen(first, r, n)
		clear(row[n:])
		down[r], sum[r] = 0, 0
		if n > 0 {
			m := max(top[r], mul*maxGo(row[:n]))
			down[r], top[r] = top[r]-m, m
			sum[r] = exp2Go(row[:n], row[:n], mul, m)
		}
	}
}

func softGradRowsGo(first, n int, s, dp []float32, ld int, mul float32, shift, delta []float32) {
	for r := range shift {
		p, d, n := s[r*ld:][:ld], dp[r*ld:][:ld], seen(first, r, n)
		clear(p[n:])
		clear(d[n:])
		exp2Go(p[:n], p[:n], mul, shift[r])
		for i, v := range p[:n] {
			d[i] = v * (d[i] - delta[r])
		}
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

func sumSquaresGo(x []float32) (s float64) {
	for _, v := range x {
		s += float64(v) * float64(v)
	}
	return s
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
		g := dy[i] * r
		dx[i] = float32(g*w[i]) - float32(v*s) // conversions round, so that no compiler contracts
		dw[i] += float32(g * v)
	}
}

func ropeGo(y, x, cos, sin []float32, sign float32) {
	for h := 0; h < len(x) && len(cos) > 0; h += 2 * len(cos) {
		for i, c := range cos {
			s, at := sign*sin[i], h+2*i
			x0, x1 := x[at], x[at+1]
			y[at], y[at+1] = x0*c-x1*s, x1*c+x0*s
		}
	}
}

func sigmoid(a float32) float32 { return float32(1 / (1 + math.Exp(-float64(a)))) }

func sigmoidGo(y, x []float32) {
	for i, v := range x {
		y[i] = sigmoid(v)
	}
}

func siluGo(y, a, b []float32) {
	for i, v := range a {
		y[i] = v * sigmoid(v) * b[i]
	}
}

func siluGradGo(da, db, dy, a, b []float32) {
	for i, v := range a {
		s, g := sigmoid(v), dy[i]
		da[i], db[i] = g*b[i]*s*(1+float32(v*(1-s))), g*v*s
	}
}

func addGo(y, a, b []float32) {
	for i, v := range a {
		y[i] = v + b[i]
	}
}

func subGo(y, a, b []float32) {
	for i, v := range a {
		y[i] = v - b[i]
	}
}

func copyRowsGo(dst []float32, dld int, src []float32, sld, rows, cols int) {
	for r := range rows {
		copy(dst[r*dld:][:cols], src[r*sld:][:cols])
	}
}

func transposeGo(dst []float32, dld int, src []float32, sld, rows, cols int) {
	for r := range rows {
		for c, v := range src[r*sld:][:cols] {
			dst[c*dld+r] = v
		}
	}
}

func packStripsGo(dst, src []float32, sld, rows, cols, w int) {
	for t := 0; t < cols; t += w {
		n := min(w, cols-t)
		for r := range rows {
			to := dst[(t/w*rows+r)*w:][:w]
			clear(to[copy(to, src[r*sld+t:][:n]):])
		}
	}
}
