package scalar

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// Inputs of which a program makes their sum alone become that sum, in whatever order it adds them.
func TestSummed(t *testing.T) {
	var b Builder
	var v []Value
	for range 4 {
		v = append(v, b.Input(dtype.BFloat16, Full))
	}
	sum := b.Add(v[3], b.Add(v[0], v[2]))
	b.Output(b.Mul(sum, v[1], sum), dtype.BFloat16, Full)
	p := b.Program()
	summed, ok := p.Summed([]int{0, 2, 3})
	require.True(t, ok)
	require.Equal(t, "[%0 bfloat16, %1 bfloat16 -> %2 = mul %0 %1, %3 = mul %2 %0 -> %3 bfloat16]", summed.String())
	in := [][]float64{{1, 2, 3, 4}, {5, 6, 7, 8}, {9, 10, 11, 12}, {13, 14, 15, 16}}
	total := []float64{23, 26, 29, 32}
	require.Equal(t, Eval(p, in, 2, 2), Eval(summed, [][]float64{total, in[1]}, 2, 2))
	for _, places := range [][]int{{0, 3}, {2, 3}, {0, 1, 2, 3}, {0, 1}} {
		_, ok := p.Summed(places)
		require.False(t, ok, "%v", places)
	}
}

// What is also read, added twice or written is not the sum alone.
func TestSummedAsks(t *testing.T) {
	for name, make := range map[string]func(b *Builder, x, y Value) Value{
		"a term":       func(b *Builder, x, y Value) Value { return b.Mul(b.Add(x, y), y) },
		"a term twice": func(b *Builder, x, y Value) Value { return b.Add(b.Add(x, y), x) },
		"a product":    func(b *Builder, x, y Value) Value { return b.Mul(x, y) },
		"a written one": func(b *Builder, x, y Value) Value {
			b.Output(y, dtype.BFloat16, Full)
			return b.Add(x, y)
		},
	} {
		var b Builder
		x, y := b.Input(dtype.BFloat16, Full), b.Input(dtype.BFloat16, Full)
		b.Output(make(&b, x, y), dtype.BFloat16, Full)
		_, ok := b.Program().Summed([]int{0, 1})
		require.False(t, ok, name)
	}
}
