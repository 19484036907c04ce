package cuda

import (
	"flag"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

var update = flag.Bool("u", false, "rewrite the generated sources")

// fusedPrograms are those that the fuse pass makes of a Llama.
func fusedPrograms(t dtype.DType) map[string]*scalar.Program {
	make := func(f func(b *scalar.Builder, in func(k scalar.Kind) scalar.Value, out func(x scalar.Value, k scalar.Kind) scalar.Value)) *scalar.Program {
		var b scalar.Builder
		f(&b, func(k scalar.Kind) scalar.Value {
			if k == scalar.Row {
				return b.Input(dtype.Float32, k)
			}
			return b.Input(t, k)
		}, func(x scalar.Value, k scalar.Kind) scalar.Value {
			to := t
			if k != scalar.Full {
				to = dtype.Float32
			}
			b.Output(x, to, k)
			return x
		})
		return b.Program()
	}
	type in = func(k scalar.Kind) scalar.Value
	type out = func(x scalar.Value, k scalar.Kind) scalar.Value
	normBackward := func(b *scalar.Builder, in in, out out) scalar.Value {
		dy := b.Add(b.Add(in(scalar.Full), in(scalar.Full)), in(scalar.Full))
		x, w, r, rest := in(scalar.Full), in(scalar.Col), in(scalar.Row), in(scalar.Full)
		mean := b.Mean(b.Mul(r, r, r, b.Sum(dy, x, w)))
		dyr := b.Mul(dy, r)
		out(b.Mul(dyr, x), scalar.Col)
		return b.Add(rest, b.Sub(b.Mul(dyr, w), b.Mul(x, mean)))
	}
	return map[string]*scalar.Program{
		"sum and norm": make(func(b *scalar.Builder, in in, out out) {
			x := out(b.Round(b.Add(in(scalar.Full), in(scalar.Full)), t), scalar.Full)
			r := b.RStd(b.Sum(x, x), 1e-5)
			out(b.Mul(x, r, in(scalar.Col)), scalar.Full)
			out(r, scalar.Row)
		}),
		"backward of a norm between sums": make(func(b *scalar.Builder, in in, out out) {
			out(normBackward(b, in, out), scalar.Full)
		}),
		"backward of a norm between sums and its largest": make(func(b *scalar.Builder, in in, out out) {
			out(out(b.Round(normBackward(b, in, out), t), scalar.Full), scalar.One)
		}),
		"norm again and its backward between sums": make(func(b *scalar.Builder, in in, out out) {
			x, w := in(scalar.Full), in(scalar.Col)
			r := b.RStd(b.Sum(x, x), 1e-5)
			out(b.Mul(x, r, w), scalar.Full)
			dy := b.Add(b.Add(in(scalar.Full), in(scalar.Full)), in(scalar.Full))
			mean := b.Mean(b.Mul(r, r, r, b.Sum(dy, x, w)))
			dyr := b.Mul(dy, r)
			out(b.Mul(dyr, x), scalar.Col)
			out(b.Add(in(scalar.Full), b.Sub(b.Mul(dyr, w), b.Mul(x, mean))), scalar.Full)
		}),
		"norm and its largest": make(func(b *scalar.Builder, in in, out out) {
			x := in(scalar.Full)
			y := b.Round(b.Mul(x, b.RStd(b.Sum(x, x), 1e-5), in(scalar.Col)), t)
			out(out(y, scalar.Full), scalar.One)
		}),
		"two and their largest": make(func(b *scalar.Builder, in in, out out) {
			x, y := in(scalar.Full), in(scalar.Full)
			out(out(b.Round(b.Mul(x, y), t), scalar.Full), scalar.One)
			out(out(b.Round(b.Add(x, y), t), scalar.Full), scalar.One)
		}),
		"swiglu and its backward": make(func(b *scalar.Builder, in in, out out) {
			x, y, dy := in(scalar.Full), in(scalar.Full), in(scalar.Full)
			s, one := b.Sigmoid(x), b.Const(1)
			out(b.Mul(x, s, y), scalar.Full)
			out(b.Mul(dy, y, s, b.Add(one, b.Mul(x, b.Sub(one, s)))), scalar.Full)
			out(b.Mul(dy, x, s), scalar.Full)
		}),
		"sum of sums": make(func(b *scalar.Builder, in in, out out) {
			out(b.Add(b.Add(in(scalar.Full), in(scalar.Full)), b.Add(in(scalar.Full), in(scalar.Full))), scalar.Full)
		}),
	}
}

// The sources of some programs, to be read.
func TestFusedSources(t *testing.T) {
	const path = "testdata/fused.txtar"
	want, err := txtar.ParseFile(path)
	require.NoError(t, err)
	got := &txtar.Archive{Comment: want.Comment}
	for _, name := range []string{"sum and norm", "backward of a norm between sums", "swiglu and its backward"} {
		got.Files = append(got.Files, txtar.File{Name: name, Data: []byte(FusedSource(fusedPrograms(dtype.BFloat16)[name])[len(fusedHeader):])})
	}
	if *update {
		require.NoError(t, os.WriteFile(path, txtar.Format(got), 0o644))
	}
	require.Equal(t, string(txtar.Format(want)), string(txtar.Format(got)))
}

// Every row has threads for all of its elements, whatever its width.
func TestFusedForms(t *testing.T) {
	for _, p := range fusedPrograms(dtype.BFloat16) {
		for _, dim := range []int{1, 7, 64, 256, 1000, 2048, 4096, 8192, 16384} {
			f, err := formOf(p, dim, fusedThreads)
			require.NoError(t, err)
			if p.Flat() {
				continue
			}
			require.GreaterOrEqual(t, f.lanes*f.vectors*f.threads, dim)
			require.LessOrEqual(t, f.threads*f.rows, 1024)
			require.GreaterOrEqual(t, f.perSM, 1)
		}
		if _, err := formOf(p, 1<<20, fusedThreads); !p.Flat() {
			require.ErrorContains(t, err, "at most")
		}
	}
}
