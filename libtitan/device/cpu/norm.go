package cpu

import "math"

// rowGrain is the rows of a task in row kernels; sums over rows are taken per task, then over tasks in order.
const rowGrain = 64

// RMSNorm computes y = x * rstd * w row by row, rstd = 1/sqrt(mean(x²)+eps) (Zhang and Sennrich, 2019).
// x and y are [rows, dim], rstd [rows], w [dim]; y may be x.
func (e *Engine) RMSNorm(y, rstd, x, w []float32, rows, dim int, eps float32) {
	rmsNorm(e, y, rstd, x, w, rows, dim, eps)
}

// RMSNormBF16 is [Engine.RMSNorm] on bfloat16 x, w and y.
func (e *Engine) RMSNormBF16(y []uint16, rstd []float32, x, w []uint16, rows, dim int, eps float32) {
	rmsNorm(e, y, rstd, x, w, rows, dim, eps)
}

// RMSNormBackward writes dx [rows, dim] and dw [dim], the sum over rows, from dy and what the forward kept; it adds to
// what dw holds when accumulate is set.
func (e *Engine) RMSNormBackward(dx, dw, dy, x, w, rstd []float32, rows, dim int, accumulate bool) {
	rmsNormBackward(e, dx, dw, dy, x, w, rstd, rows, dim, accumulate)
}

// RMSNormBackwardBF16 is [Engine.RMSNormBackward] on bfloat16 activations; dw stays float32.
func (e *Engine) RMSNormBackwardBF16(dx []uint16, dw []float32, dy, x, w []uint16, rstd []float32, rows, dim int, accumulate bool) {
	rmsNormBackward(e, dx, dw, dy, x, w, rstd, rows, dim, accumulate)
}

func rmsNorm[T elem](e *Engine, y []T, rstd []float32, x, w []T, rows, dim int, eps float32) {
	e.For(rows, rowGrain, func(lo, hi int) {
		s := scratchFor[T](dim)
		ar := e.borrow(3*s, 3)
		defer e.giveBack(ar)
		bw, bx, by := ar.take(s), ar.take(s), ar.take(s)
		wide := widened(e.k, bw, w[:dim])
		for i := lo; i < hi; i++ {
			xr := widened(e.k, bx, x[i*dim:][:dim])
			rstd[i] = float32(1 / math.Sqrt(float64(e.k.dot(xr, xr))/float64(dim)+float64(eps)))
			out := y[i*dim:][:dim]
			yr := target(by, out)
			e.k.scaleMul(yr, xr, wide, rstd[i])
			stored(e.k, out, yr)
		}
	})
}

// rmsNormBackward: with r = rstd and g = dy*w, dx = r*g - x * r³*sum(g*x)/dim and dw = sum over rows of dy*x*r.
func rmsNormBackward[T elem](e *Engine, dx []T, dw []float32, dy, x, w []T, rstd []float32, rows, dim int, accumulate bool) {
	parts := (rows + rowGrain - 1) / rowGrain
	sums := e.borrow(parts*dim, 1)
	defer e.giveBack(sums)
	part := sums.zeros(parts * dim)
	e.For(rows, rowGrain, func(lo, hi int) {
		s := scratchFor[T](dim)
		ar := e.borrow(4*s, 4)
		defer e.giveBack(ar)
		bw, bx, bg, bd := ar.take(s), ar.take(s), ar.take(s), ar.take(s)
		wide := widened(e.k, bw, w[:dim])
		sum := part[lo/rowGrain*dim:][:dim]
		for i := lo; i < hi; i++ {
			xr, gr := widened(e.k, bx, x[i*dim:][:dim]), widened(e.k, bg, dy[i*dim:][:dim])
			out := dx[i*dim:][:dim]
			dr := target(bd, out)
			r := rstd[i]
			e.k.normGrad(dr, sum, gr, xr, wide, r, r*r*r*e.k.dot3(gr, xr, wide)/float32(dim))
			stored(e.k, out, dr)
		}
	})
	if !accumulate {
		clear(dw[:dim])
	}
	for i := 1; i < parts; i++ {
		e.k.add(part[:dim], part[:dim], part[i*dim:][:dim])
	}
	if parts > 0 {
		e.k.add(dw[:dim], dw[:dim], part[:dim])
	}
}
