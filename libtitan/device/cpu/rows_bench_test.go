package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkRows measures row kernels at a small model's sizes, in bytes read and written.
func BenchmarkRows(b *testing.B) {
	const rows, dim, hidden, vocab = 4096, 256, 768, 2048
	e, err := New(Options{})
	require.NoError(b, err)
	x, y, z := random(1, rows*hidden), random(2, rows*hidden), random(3, rows*hidden)
	w, rstd := random(4, hidden), random(5, rows)
	logits, labels := random(6, rows*vocab), make([]int32, rows)
	for _, c := range []struct {
		name  string
		bytes int
		f     func()
	}{
		{"RMSNorm", 8 * rows * dim, func() { e.RMSNorm(y, rstd, x, w, rows, dim, 1e-5) }},
		{"RMSNormBackward", 12 * rows * dim, func() { e.RMSNormBackward(z, w, y, x, w, rstd, rows, dim, true) }},
		{"Rope", 8 * rows * dim, func() { e.Rope(y, x, logits, logits, 2, 2048, 16, 16, false) }},
		{"SwiGLU", 12 * rows * hidden, func() { e.SwiGLU(z, x, y) }},
		{"Add", 12 * rows * dim, func() { e.Add(z[:rows*dim], x[:rows*dim], y[:rows*dim]) }},
		{"CrossEntropy", 4 * rows * vocab, func() {
			_, err := e.CrossEntropy(nil, rstd, logits, labels, rows, vocab)
			require.NoError(b, err)
		}},
		{"CrossEntropyBackward", 8 * rows * vocab, func() {
			e.CrossEntropyBackward(logits, logits, labels, rstd, 1/float32(math.E), rows, vocab)
		}},
		{"AdamW", 28 * rows * dim, func() {
			n := rows * dim
			e.AdamW(x[:n], logits[:n], y[:n], logits[n:2*n], AdamW{LR: 1e-3, C1: 1, C2: 1, GradScale: 1})
		}},
		{"SumSquares", 4 * rows * hidden, func() { e.SumSquares(x) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(int64(c.bytes))
			for b.Loop() {
				c.f()
			}
		})
	}
}
