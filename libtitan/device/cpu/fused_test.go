package cpu

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

// A sum and a norm, fused, have the bits of the two kernels, float32 and bfloat16; so has the sum that is kept.
func TestFusedSumAndNorm(t *testing.T) {
	for _, c := range []struct{ rows, dim int }{{1, 8}, {70, 33}, {200, 256}, {3, 4096}} {
		for _, e := range engines(2) {
			t.Run(fmt.Sprint(c, e.Name()), func(t *testing.T) {
				n := c.rows * c.dim
				a, b, w := normals(1, n), normals(2, n), normals(3, c.dim)
				sum, y, rstd := make([]float32, n), make([]float32, n), make([]float32, c.rows)
				wantSum, wantY, wantRStd := make([]float32, n), make([]float32, n), make([]float32, c.rows)
				e.Add(wantSum, a, b)
				e.RMSNorm(wantY, wantRStd, wantSum, w, c.rows, c.dim, 1e-5)
				e.Fused(sumAndNorm(dtype.Float32), c.rows, c.dim, []Values{{F32: a}, {F32: b}, {F32: w}}, []Values{{F32: sum}, {F32: y}, {F32: rstd}}, make([]bool, 3))
				require.Equal(t, wantSum, sum)
				require.Equal(t, wantY, y)
				require.Equal(t, wantRStd, rstd)

				a16, b16, w16 := narrowed(a), narrowed(b), narrowed(w)
				sum16, y16 := make([]uint16, n), make([]uint16, n)
				wantSum16, wantY16 := make([]uint16, n), make([]uint16, n)
				e.AddBF16(wantSum16, a16, b16)
				e.RMSNormBF16(wantY16, wantRStd, wantSum16, w16, c.rows, c.dim, 1e-5)
				e.Fused(sumAndNorm(dtype.BFloat16), c.rows, c.dim, []Values{{BF16: a16}, {BF16: b16}, {BF16: w16}}, []Values{{BF16: sum16}, {BF16: y16}, {F32: rstd}}, make([]bool, 3))
				require.Equal(t, wantSum16, sum16)
				require.Equal(t, wantY16, y16)
				require.Equal(t, wantRStd, rstd)
			})
		}
	}
}

func sumAndNorm(t dtype.DType) *scalar.Program {
	var b scalar.Builder
	x := b.Round(b.Add(b.Input(t, scalar.Full), b.Input(t, scalar.Full)), t)
	r := b.RStd(b.Sum(x, x), 1e-5)
	y := b.Mul(x, r, b.Input(t, scalar.Col))
	b.Output(x, t, scalar.Full)
	b.Output(y, t, scalar.Full)
	b.Output(r, dtype.Float32, scalar.Row)
	return b.Program()
}

func narrowed(x []float32) []uint16 {
	y := make([]uint16, len(x))
	dtype.NarrowBF16(y, x)
	return y
}

// normals are n numbers about 0.
func normals(seed, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i*2654435761+seed*40503)%2001-1000) / 500
	}
	return x
}

// Random programs give what their definition in float64 does, whatever the rows, and add to what is there when told to.
func TestFusedPrograms(t *testing.T) {
	all := engines(2)
	rapid.Check(t, func(t *rapid.T) {
		p := randomProgram(t)
		e := rapid.SampledFrom(all).Draw(t, "engine")
		rows, width := rapid.IntRange(1, 150).Draw(t, "rows"), rapid.SampledFrom([]int{1, 5, 8, 24, 130}).Draw(t, "width")
		size := map[scalar.Kind]int{scalar.Full: rows * width, scalar.Row: rows, scalar.Col: width, scalar.One: 1}
		var in, out []Values
		var wide [][]float64
		for i, o := range p.In {
			x := normals(i, size[o.Kind])
			in, wide = append(in, Values{F32: x}), append(wide, widened64(x))
		}
		want := scalar.Eval(p, wide, rows, width)
		add := rapid.SliceOfN(rapid.Bool(), len(p.Out), len(p.Out)).Draw(t, "add")
		for i, o := range p.Out {
			add[i] = add[i] && (o.Kind == scalar.Full || o.Kind == scalar.Col)
			y := normals(77, size[o.Kind])
			for j := range y {
				if add[i] {
					want[i][j] += float64(y[j])
				}
			}
			out = append(out, Values{F32: y})
		}
		e.Fused(p, rows, width, in, out, add)
		for i := range out {
			for j, w := range want[i] {
				require.InDelta(t, w, out[i].F32[j], 1e-4*(1+max(w, -w)), "result %d of %v", i, p)
			}
		}
	})
}

func widened64(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// randomProgram has a few bounded steps of every code and kind.
func randomProgram(t *rapid.T) *scalar.Program {
	var b scalar.Builder
	values := []scalar.Value{b.Input(dtype.Float32, scalar.Full)}
	for _, k := range rapid.SliceOfN(rapid.SampledFrom([]scalar.Kind{scalar.Full, scalar.Row, scalar.Col, scalar.One}), 0, 3).Draw(t, "inputs") {
		values = append(values, b.Input(dtype.Float32, k))
	}
	pick := func() scalar.Value { return rapid.SampledFrom(values).Draw(t, "value") }
	wide := func() scalar.Value {
		return rapid.SampledFrom(slices.DeleteFunc(slices.Clone(values), func(v scalar.Value) bool {
			return b.Kind(v) == scalar.Row || b.Kind(v) == scalar.One
		})).Draw(t, "wide")
	}
	half := b.Const(0.5)
	for range rapid.IntRange(1, 6).Draw(t, "steps") {
		var v scalar.Value
		switch rapid.IntRange(0, 5).Draw(t, "code") {
		case 0:
			v = b.Mul(b.Add(pick(), pick()), half)
		case 1:
			v = b.Mul(b.Sub(pick(), pick()), half)
		case 2:
			v = b.Sigmoid(pick())
		case 3:
			v = b.Mul(b.Sigmoid(pick()), pick())
		case 4:
			v = b.Mean(b.Sum(values[0], wide()))
		case 5:
			x := wide()
			v = b.RStd(b.Sum(values[0], values[0], b.Mul(x, x)), 0.5)
		}
		values = append(values, v)
	}
	last := values[len(values)-1]
	if k := b.Kind(last); k == scalar.Full || k == scalar.Row {
		b.Output(last, dtype.Float32, k)
	}
	b.Output(b.Add(last, values[0]), dtype.Float32, scalar.Full)
	b.Output(b.Mul(values[0], half), dtype.Float32, scalar.Col)
	return b.Program()
}
