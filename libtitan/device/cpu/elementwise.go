package cpu

// flatGrain is the elements of a task in kernels over flat slices: three inputs of it fit the L2 cache.
const flatGrain = 8192

// SwiGLU computes y = a*sigmoid(a)*b (Shazeer, 2020), element by element; y may be a or b.
func (e *Engine) SwiGLU(y, a, b []float32) { swiGLU(e, y, a, b) }

// SwiGLUBF16 is [Engine.SwiGLU] on bfloat16.
func (e *Engine) SwiGLUBF16(y, a, b []uint16) { swiGLU(e, y, a, b) }

func swiGLU[T elem](e *Engine, y, a, b []T) {
	e.For(len(y), flatGrain, func(lo, hi int) {
		n := scratchFor[T](hi - lo)
		ar := e.borrow(3*n, 3)
		defer e.giveBack(ar)
		out := target(ar.take(n), y[lo:hi])
		e.k.silu(out, widened(e.k, ar.take(n), a[lo:hi]), widened(e.k, ar.take(n), b[lo:hi]))
		stored(e.k, y[lo:hi], out)
	})
}

// SwiGLUBackward writes da = dy*b*silu'(a) and db = dy*silu(a); da and db may be a, b or dy.
func (e *Engine) SwiGLUBackward(da, db, dy, a, b []float32) { swiGLUBackward(e, da, db, dy, a, b) }

// SwiGLUBackwardBF16 is [Engine.SwiGLUBackward] on bfloat16.
func (e *Engine) SwiGLUBackwardBF16(da, db, dy, a, b []uint16) {
	swiGLUBackward(e, da, db, dy, a, b)
}

func swiGLUBackward[T elem](e *Engine, da, db, dy, a, b []T) {
	e.For(len(dy), flatGrain, func(lo, hi int) {
		n := scratchFor[T](hi - lo)
		ar := e.borrow(5*n, 5)
		defer e.giveBack(ar)
		oa, ob := target(ar.take(n), da[lo:hi]), target(ar.take(n), db[lo:hi])
		in := func(x []T) []float32 { return widened(e.k, ar.take(n), x[lo:hi]) }
		e.k.siluGrad(oa, ob, in(dy), in(a), in(b))
		stored(e.k, da[lo:hi], oa)
		stored(e.k, db[lo:hi], ob)
	})
}

// Add sums one or more slices of equal length into y, left to right; y may be one of them.
func (e *Engine) Add(y []float32, xs ...[]float32) { add(e, y, xs) }

// AddBF16 is [Engine.Add] on bfloat16, rounded once.
func (e *Engine) AddBF16(y []uint16, xs ...[]uint16) { add(e, y, xs) }

func add[T elem](e *Engine, y []T, xs [][]T) {
	e.For(len(y), flatGrain, func(lo, hi int) {
		ar := e.borrow(2*(hi-lo), 2)
		defer e.giveBack(ar)
		sum, in := ar.take(hi-lo), ar.take(hi-lo)
		copyWide(e.k, sum, xs[0][lo:hi])
		for _, x := range xs[1:] {
			e.k.add(sum, sum, widened(e.k, in, x[lo:hi]))
		}
		storeWide(e.k, y[lo:hi], sum)
	})
}

// Widen converts bfloat16 x into float32 y, exactly.
func (e *Engine) Widen(y []float32, x []uint16) {
	e.For(len(y), flatGrain, func(lo, hi int) { e.k.widen(y[lo:hi], x[lo:hi]) })
}

// Narrow rounds float32 x into bfloat16 y, ties to even.
func (e *Engine) Narrow(y []uint16, x []float32) {
	e.For(len(y), flatGrain, func(lo, hi int) { e.k.narrow(y[lo:hi], x[lo:hi]) })
}

// SumSquares is the sum of x² in float64.
func (e *Engine) SumSquares(x []float32) float64 {
	parts := make([]float64, (len(x)+flatGrain-1)/flatGrain)
	e.For(len(x), flatGrain, func(lo, hi int) {
		parts[lo/flatGrain] = e.k.sumSquares(x[lo:hi])
	})
	var sum float64
	for _, p := range parts {
		sum += p
	}
	return sum
}
