package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// bothTypes is rows x width numbers and their bfloat16 forms.
func bothTypes(rng *rand.Rand, rows, width int) (x []float32, narrow []uint16) {
	x, narrow = make([]float32, rows*width), make([]uint16, rows*width)
	for i := range x {
		x[i] = dtype.F32(dtype.BF16(float32(rng.NormFloat64() * math.Exp2(float64(i%5)))))
	}
	dtype.NarrowBF16(narrow, x)
	return x, narrow
}

// scales is how many scales a matrix has.
func (s Scaling) scales(rows, width int) int { return [...]int{1, rows, width}[s] }

// Every element of a cast is its number times its scale, rounded, whatever shares the scale, in both types and with any
// number of threads; products are those of what the operands stand for.
func TestFloat8AgainstItsFormula(t *testing.T) {
	const rows, width, out = 19, 70, 33
	for _, threads := range []int{1, 3} {
		e, err := New(Options{Threads: threads})
		require.NoError(t, err)
		for _, per := range []Scaling{PerTensor, PerRow, PerColumn} {
			for _, to := range []dtype.DType{dtype.Float8E4M3FN, dtype.Float8E5M2} {
				t.Run(fmt.Sprint(threads, per, to), func(t *testing.T) {
					rng := rand.New(rand.NewPCG(1, uint64(per)))
					x, narrow := bothTypes(rng, rows, width)
					m := checkedCast(t, e, x, narrow, rows, width, to, per)
					w, wn := bothTypes(rng, out, width)
					b := checkedCast(t, e, w, wn, out, width, dtype.Float8E4M3FN, PerRow)
					c, wide := make([]float32, rows*out), make([]uint16, rows*out)
					c[3] = 5
					e.GemmFloat8(false, true, rows, out, width, m, b, c, true)
					e.GemmFloat8Out(false, true, rows, out, width, m, b, wide)
					for i := range rows {
						for j := range out {
							var want, size float64
							for k := range width {
								p := m.at(i, k, width) * b.at(j, k, width)
								want, size = want+p, size+math.Abs(p)
							}
							if i*out+j == 3 {
								c[3] -= 5
							}
							require.InDelta(t, want, c[i*out+j], 1e-5*(1+size))
							require.InDelta(t, want, dtype.F32(wide[i*out+j]), 0x1p-8*math.Abs(want)+1e-5*size)
						}
					}
				})
			}
		}
	}
}

// at is what an element stands for.
func (m Float8Matrix) at(row, column, width int) float64 {
	return float64(m.Type.Float8Table()[m.Q[row*width+column]]) * float64(m.Inverse[m.Per.at(row, column)])
}

func checkedCast(t *testing.T, e *Engine, x []float32, narrow []uint16, rows, width int, to dtype.DType, per Scaling) Float8Matrix {
	n := per.scales(rows, width)
	want, amax, again := make([]float32, n), make([]float32, n), make([]float32, n)
	for i, v := range x {
		at := per.at(i/width, i%width)
		want[at] = max(want[at], float32(math.Abs(float64(v))))
	}
	amax[0] = 1e30 // is overwritten
	e.Amax(amax, x, rows, width, per)
	e.AmaxBF16(again, narrow, rows, width, per)
	require.Equal(t, want, amax)
	require.Equal(t, want, again)
	var first Float8Matrix
	for _, power2 := range []bool{true, false} {
		m := Float8Matrix{Type: to, Q: make([]byte, rows*width), Inverse: make([]float32, n), Per: per}
		e.Float8Cast(m, x, amax, rows, width, power2)
		for i, v := range x {
			at := per.at(i/width, i%width)
			scale := dtype.Float8Scale(to, amax[at], power2)
			q := []byte{0}
			to.NarrowFloat8(q, []float32{v * scale})
			require.Equal(t, q[0], m.Q[i])
			require.Equal(t, 1/scale, m.Inverse[at])
		}
		first = Float8Matrix{Type: to, Q: make([]byte, rows*width), Inverse: make([]float32, n), Per: per}
		e.Float8CastBF16(first, narrow, amax, rows, width, power2)
		require.Equal(t, m, first)
	}
	return first
}

// Zeros stay zeros, and what is not finite makes NaNs of what it shares a scale with.
func TestFloat8OfZerosAndInfinities(t *testing.T) {
	e, err := New(Options{})
	require.NoError(t, err)
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		x         []float32 // 2 x 2
		amax      []float32 // by row
		notFinite []bool
	}{
		{[]float32{0, 0, 3, -4}, []float32{0, 4}, []bool{false, false}},
		{[]float32{-inf, 1, 3, -4}, []float32{inf, 4}, []bool{true, false}},
		{[]float32{0, 1, 3, nan}, []float32{1, nan}, []bool{false, true}},
	} {
		amax, one, y := make([]float32, 2), []float32{1, 0, 0, 1}, make([]float32, 4)
		e.Amax(amax, c.x, 2, 2, PerRow)
		require.Equal(t, fmt.Sprint(c.amax), fmt.Sprint(amax))
		a := Float8Matrix{Type: dtype.Float8E4M3FN, Q: make([]byte, 4), Inverse: make([]float32, 2), Per: PerRow}
		e.Float8Cast(a, c.x, amax, 2, 2, true)
		b := Float8Matrix{Type: dtype.Float8E4M3FN, Q: make([]byte, 4), Inverse: make([]float32, 1)}
		e.Float8Cast(b, one, []float32{1}, 2, 2, true)
		e.GemmFloat8(false, true, 2, 2, 2, a, b, y, false)
		for i, v := range y {
			if c.notFinite[i/2] {
				require.True(t, math.IsNaN(float64(v)), "%v gives %v", c.x, y)
			} else {
				require.Equal(t, c.x[i], v)
			}
		}
	}
}

func BenchmarkFloat8Cast(b *testing.B) {
	e, err := New(Options{Threads: 1})
	require.NoError(b, err)
	const rows, width = 512, 2048
	x, _ := bothTypes(rand.New(rand.NewPCG(1, 2)), rows, width)
	m := Float8Matrix{Type: dtype.Float8E4M3FN, Q: make([]byte, rows*width), Inverse: make([]float32, 1)}
	amax := make([]float32, 1)
	b.SetBytes(4 * rows * width)
	for b.Loop() {
		e.Amax(amax, x, rows, width, PerTensor)
		e.Float8Cast(m, x, amax, rows, width, false)
	}
}
