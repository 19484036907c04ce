package scalar

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// A step that is there already is not made again, and what no result needs is left out; inputs stay.
func TestBuilder(t *testing.T) {
	var b Builder
	x, y := b.Input(dtype.BFloat16, Full), b.Input(dtype.Float32, Row)
	unused := b.Sigmoid(x)
	require.Equal(t, unused, b.Sigmoid(x))
	product := b.Mul(x, y)
	require.Equal(t, product, b.Mul(x, y))
	require.Equal(t, x, b.Round(x, dtype.BFloat16), "a bfloat16 input is exact")
	require.Equal(t, product, b.Round(product, dtype.Float32))
	rounded := b.Round(product, dtype.BFloat16)
	require.Equal(t, rounded, b.Round(rounded, dtype.BFloat16))
	b.Output(rounded, dtype.BFloat16, Full)
	p := b.Program()
	require.Equal(t, "[%0 bfloat16, %1 float32 row -> %2 = mul %0 %1, %3 = round %2 -> %3 bfloat16]", p.String())
	require.False(t, p.Flat())
}

// Of values of two kinds something of the larger is made; a row and a column make a whole.
func TestKinds(t *testing.T) {
	var b Builder
	v := map[Kind]Value{}
	for _, k := range []Kind{Full, Row, Col, One} {
		v[k] = b.Input(dtype.Float32, k)
	}
	for _, c := range []struct{ x, y, want Kind }{{Full, Row, Full}, {One, Row, Row}, {Col, One, Col}, {Row, Col, Full}, {Row, Row, Row}, {One, One, One}} {
		require.Equal(t, c.want, b.Kind(b.Add(v[c.x], v[c.y])))
		require.Equal(t, c.want, b.Kind(b.Mul(v[c.y], v[c.x])))
	}
	require.Equal(t, Row, b.Kind(b.Sum(v[Full], v[Col])))
}

// Programs are named by what they do: equal ones alike, others not.
func TestHash(t *testing.T) {
	norm := func(eps float64) *Program {
		var b Builder
		x := b.Input(dtype.Float32, Full)
		b.Output(b.Mul(x, b.RStd(b.Sum(x, x), eps)), dtype.Float32, Full)
		return b.Program()
	}
	require.Equal(t, norm(1e-5).Hash(), norm(1e-5).Hash())
	require.NotEqual(t, norm(1e-5).Hash(), norm(1e-6).Hash())
	rows, cols := norm(1e-5).Sums()
	require.True(t, rows)
	require.False(t, cols)
}

// The reference: of rows 3 4 and 0 2, each divided by its root mean square, and the columns' sums.
func TestEval(t *testing.T) {
	var b Builder
	x := b.Input(dtype.Float32, Full)
	b.Output(b.Mul(x, b.RStd(b.Sum(x, x), 0)), dtype.Float32, Full)
	b.Output(x, dtype.Float32, Col)
	got := Eval(b.Program(), [][]float64{{3, 4, 0, 2}}, 2, 2)
	require.InDeltaSlice(t, []float64{3 / 3.5355339059327378, 4 / 3.5355339059327378, 0, 1.4142135623730951}, got[0], 1e-15)
	require.Equal(t, []float64{3, 6}, got[1])
}
