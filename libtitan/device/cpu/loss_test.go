package cpu

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func refCrossEntropy(logits []float32, labels []int32, scale float64, rows, vocab int) (loss, lse, d []float64) {
	loss, lse, d = make([]float64, rows), make([]float64, rows), make([]float64, rows*vocab)
	for i := range rows {
		row := logits[i*vocab:][:vocab]
		var sum float64
		for _, v := range row {
			sum += math.Exp(float64(v))
		}
		lse[i] = math.Log(sum)
		if labels[i] == Ignored {
			continue
		}
		loss[i] = lse[i] - float64(row[labels[i]])
		for j, v := range row {
			d[i*vocab+j] = scale * math.Exp(float64(v)-lse[i])
		}
		d[i*vocab+int(labels[i])] -= scale
	}
	return loss, lse, d
}

func TestCrossEntropy(t *testing.T) {
	for _, e := range engines(1, 2) {
		for _, s := range [][2]int{{0, 5}, {1, 1}, {40, 7}, {33, 2048}, {3, lossSpan + 77}} {
			rows, vocab := s[0], s[1]
			logits, labels := random(1, rows*vocab), make([]int32, rows)
			for i := range labels {
				labels[i] = int32(i * 31 % vocab)
				if i%5 == 3 {
					labels[i] = Ignored
				}
			}
			for i := range logits {
				logits[i] *= 4
			}
			loss, wantLSE, want := refCrossEntropy(logits, labels, 0.5, rows, vocab)
			per, lse, d := make([]float32, rows), make([]float32, rows), make([]float32, rows*vocab)
			sum, err := e.CrossEntropy(per, lse, logits, labels, rows, vocab)
			require.NoError(t, err)
			near(t, loss, per, 1e-6)
			near(t, wantLSE, lse, 1e-6)
			require.InDelta(t, total(loss), sum, 5e-7*(1+total(loss)))
			e.CrossEntropyBackward(d, logits, labels, lse, 0.5, rows, vocab)
			near(t, want, d, 1e-6)

			h := bf16(logits)
			loss, _, want = refCrossEntropy(fromBF16(h), labels, 0.5, rows, vocab)
			sum, err = e.CrossEntropyBF16(nil, lse, h, labels, rows, vocab)
			require.NoError(t, err)
			require.InDelta(t, total(loss), sum, 5e-7*(1+total(loss)))
			e.CrossEntropyBackwardBF16(h, h, labels, lse, 0.5, rows, vocab)
			near(t, want, fromBF16(h), 2e-3)
		}
	}
}

func total(x []float64) (s float64) {
	for _, v := range x {
		s += v
	}
	return s
}

func TestCrossEntropyShowsNaN(t *testing.T) {
	for _, e := range engines(1) {
		x := random(1, 40)
		x[13] = float32(math.NaN())
		sum, err := e.CrossEntropy(nil, make([]float32, 1), x, []int32{2}, 1, 40)
		require.NoError(t, err)
		require.True(t, math.IsNaN(sum), e.k.name)
	}
}

func TestCrossEntropyRefusesLabel(t *testing.T) {
	e := engines(1)[0]
	for _, bad := range []int32{-1, 5, -99} {
		_, err := e.CrossEntropy(nil, make([]float32, 2), random(1, 10), []int32{0, bad}, 2, 5)
		require.ErrorContains(t, err, "of token 1: want 0..4, or -100")
	}
}

func TestEmbedding(t *testing.T) {
	const vocab, dim = 150, 11
	ids := make([]int32, 333)
	for i := range ids {
		ids[i] = int32(i * i % vocab)
	}
	w, dy := random(1, vocab*dim), random(2, len(ids)*dim)
	want := make([]float64, vocab*dim)
	for i, id := range ids {
		for j := range dim {
			want[int(id)*dim+j] += float64(dy[i*dim+j])
		}
	}
	var first []float32
	for _, e := range engines(1, 4) {
		y, dw := make([]float32, len(ids)*dim), random(3, vocab*dim)
		require.NoError(t, e.Embedding(y, w, ids, vocab, dim))
		for i, id := range ids {
			require.Equal(t, w[int(id)*dim:][:dim], y[i*dim:][:dim])
		}
		require.NoError(t, e.EmbeddingBackward(dw, dy, ids, vocab, dim, false))
		near(t, want, dw, 1e-6)
		if first == nil {
			first = append(first, dw...)
		}
		sameBits(t, first, dw)
		h := make([]uint16, len(ids)*dim)
		require.NoError(t, e.EmbeddingBF16(h, bf16(w), ids, vocab, dim))
		sameBits(t, bf16(y), h)
		require.NoError(t, e.EmbeddingBackwardBF16(dw, bf16(dy), ids, vocab, dim, true))
		for i := range want {
			require.InDelta(t, 2*want[i], dw[i], 0.05)
		}
	}
}

func TestEmbeddingRefusesID(t *testing.T) {
	e := engines(1)[0]
	require.ErrorContains(t, e.Embedding(make([]float32, 4), random(1, 6), []int32{1, 3}, 3, 2), "id 3 of token 1: want 0..2")
	require.ErrorContains(t, e.EmbeddingBackward(make([]float32, 6), random(1, 2), []int32{-2}, 3, 2, false), "id -2")
}
