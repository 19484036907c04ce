package cpu

import (
	"math"

	"titan/libtitan/dtype"
)

// Scaling is which elements of a matrix share a scale.
type Scaling uint8

// The scalings.
const (
	PerTensor Scaling = iota
	PerRow
	PerColumn
)

// at is the place of the scale of a row's element.
func (s Scaling) at(row, column int) int {
	switch s {
	case PerRow:
		return row
	case PerColumn:
		return column
	}
	return 0
}

// Amax writes the largest magnitudes of x [rows, width]: one, one a row or one a column. A NaN is larger than all.
func (e *Engine) Amax(out, x []float32, rows, width int, per Scaling) {
	amax(e, out, x, rows, width, per)
}

// AmaxBF16 is [Engine.Amax] of bfloat16.
func (e *Engine) AmaxBF16(out []float32, x []uint16, rows, width int, per Scaling) {
	amax(e, out, x, rows, width, per)
}

// Magnitudes are compared by their bits: a NaN has more than infinity.
func amax[T elem](e *Engine, out []float32, x []T, rows, width int, per Scaling) {
	span := max(float8Rows(width), (rows+63)/64) // a largest is the same however it is found: few parts of it
	parts := make([][]uint32, (rows+span-1)/span)
	e.For(rows, span, func(lo, hi int) {
		ar := e.borrow(scratchFor[T](width), 1)
		defer e.giveBack(ar)
		buf, part := ar.take(scratchFor[T](width)), make([]uint32, len(out))
		for r := lo; r < hi; r++ {
			row := widened(e.k, buf, x[r*width:][:width])
			if per == PerColumn {
				for c, v := range row {
					part[c] = max(part[c], magnitude(v))
				}
				continue
			}
			top := &part[per.at(r, 0)]
			*top = largest(*top, row)
		}
		parts[lo/span] = part
	})
	clear(out)
	for _, part := range parts {
		for i, v := range part {
			out[i] = max(out[i], math.Float32frombits(v))
		}
	}
}

func magnitude(f float32) uint32 { return math.Float32bits(f) &^ (1 << 31) }

// largest is the largest magnitude of x, or top where that is larger.
func largest(top uint32, x []float32) uint32 {
	for _, v := range x {
		top = max(top, magnitude(v))
	}
	return top
}

// float8Rows is the rows of a task over rows of that width.
func float8Rows(width int) int { return max(1, flatGrain/max(1, width)) }

// Float8Matrix is float8 numbers of one type and the reciprocals of their scales.
type Float8Matrix struct {
	Type    dtype.DType
	Q       []byte
	Turned  []byte    // columns of Q as rows: only casts write it, where it is not nil
	Inverse []float32 // one, one a row or one a column
	Per     Scaling
}

// Float8Cast fills m, of which Q or Turned may be nil, from x [rows, width] by its largest magnitudes; power2 as in
// dtype.Float8Scale.
func (e *Engine) Float8Cast(m Float8Matrix, x, amax []float32, rows, width int, power2 bool) {
	float8Cast(e, m, x, amax, rows, width, power2)
}

// Float8CastBF16 is [Engine.Float8Cast] of bfloat16.
func (e *Engine) Float8CastBF16(m Float8Matrix, x []uint16, amax []float32, rows, width int, power2 bool) {
	float8Cast(e, m, x, amax, rows, width, power2)
}

func float8Cast[T elem](e *Engine, m Float8Matrix, x []T, amax []float32, rows, width int, power2 bool) {
	scales := make([]float32, len(amax))
	for i, a := range amax {
		scales[i] = dtype.Float8Scale(m.Type, a, power2)
		m.Inverse[i] = 1 / scales[i]
	}
	e.For(rows, float8Rows(width), func(lo, hi int) {
		ar := e.borrow(width+scratchFor[T](width), 2)
		defer e.giveBack(ar)
		scaled, buf := ar.take(width), ar.take(scratchFor[T](width))
		var q []byte
		if m.Q == nil {
			q = make([]byte, width)
		}
		for r := lo; r < hi; r++ {
			row := widened(e.k, buf, x[r*width:][:width])
			if m.Per == PerColumn {
				e.k.scaleMul(scaled, row, scales, 1)
			} else {
				e.k.scale(scaled, row, scales[m.Per.at(r, 0)])
			}
			if m.Q != nil {
				q = m.Q[r*width:][:width]
			}
			m.Type.NarrowFloat8(q, scaled)
			if m.Turned != nil {
				turnRow(m.Turned, q, r, rows)
			}
		}
	})
}

// turnRow writes row r of a matrix of that many rows to where its columns are rows.
func turnRow(turned, row []byte, r, rows int) {
	for c, b := range row {
		turned[c*rows+r] = b
	}
}

// Float8Turn writes the columns of x [rows, width] as rows of y.
func (e *Engine) Float8Turn(y, x []byte, rows, width int) {
	e.For(rows, float8Rows(width), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			turnRow(y, x[r*width:][:width], r, rows)
		}
	})
}

// GemmFloat8 is [Engine.Gemm] of what float8 a and b stand for, with products and sums in float32, as torchao emulates it. The
// matrices are stored whole, as op(A) and op(B) are transposed.
func (e *Engine) GemmFloat8(transA, transB bool, m, n, k int, a, b Float8Matrix, c []float32, accumulate bool) {
	gemmFloat8(e, transA, transB, m, n, k, a, b, func(wa, wb []float32, lda, ldb int) {
		e.Gemm(transA, transB, m, n, k, wa, wb, c, lda, ldb, n, accumulate)
	})
}

// GemmFloat8Out is [Engine.GemmFloat8] with a bfloat16 C, rounded once.
func (e *Engine) GemmFloat8Out(transA, transB bool, m, n, k int, a, b Float8Matrix, c []uint16) {
	gemmFloat8(e, transA, transB, m, n, k, a, b, func(wa, wb []float32, lda, ldb int) {
		g := gemm[float32, uint16]{e, e.k.tile, 1, operand[float32]{wa, lda, transA}, operand[float32]{wb, ldb, transB}, c, n}
		g.run(m, n, k, false)
	})
}

func gemmFloat8(e *Engine, transA, transB bool, m, n, k int, a, b Float8Matrix, product func(wa, wb []float32, lda, ldb int)) {
	lda, ldb := k, n
	if transA {
		lda = m
	}
	if transB {
		ldb = k
	}
	ar := e.borrow(m*k+k*n, 2)
	defer e.giveBack(ar)
	wa, wb := ar.take(m*k), ar.take(k*n)
	e.float8Widen(wa, a, lda)
	e.float8Widen(wb, b, ldb)
	product(wa, wb, lda, ldb)
}

// float8Widen writes what m, of rows of that width, stands for.
func (e *Engine) float8Widen(y []float32, m Float8Matrix, width int) {
	if width == 0 {
		return
	}
	values := m.Type.Float8Table()
	e.For(len(y)/width, float8Rows(width), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row := y[r*width:][:width]
			for c, q := range m.Q[r*width:][:width] {
				row[c] = values[q]
			}
			if m.Per == PerColumn {
				e.k.scaleMul(row, row, m.Inverse, 1)
			} else {
				e.k.scale(row, row, m.Inverse[m.Per.at(r, 0)])
			}
		}
	})
}
