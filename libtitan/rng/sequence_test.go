package rng

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Any slices, in any order, are what one generator gives tensor after tensor.
func TestSequenceSlices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, g := NewSequence(11), NewTorch(11)
		s.every = 700 // so that small tensors cross saved states
		type tensor struct {
			fill Fill
			want []float32
		}
		var tensors []tensor
		for _, n := range rapid.SliceOfN(rapid.IntRange(1, 3000), 1, 6).Draw(t, "sizes") {
			want := make([]float32, n)
			if rapid.Bool().Draw(t, "truncated") {
				g.TruncNormal(want, 0, 1, -2, 2)
				tensors = append(tensors, tensor{s.TruncNormal(int64(n), 0, 1, -2, 2), want})
			} else {
				n = max(1, n%40) // around the 16 where the method changes
				want = want[:n]
				g.Normal(want, 0, 1)
				tensors = append(tensors, tensor{s.Normal(int64(n), 0, 1), want})
			}
		}
		for range 20 {
			x := rapid.SampledFrom(tensors).Draw(t, "tensor")
			from := rapid.IntRange(0, len(x.want)-1).Draw(t, "from")
			to := rapid.IntRange(from+1, len(x.want)).Draw(t, "to")
			got := make([]float32, to-from)
			x.fill(got, int64(from))
			require.Equal(t, x.want[from:to], got)
		}
	})
}

func TestSequenceThinsItsStates(t *testing.T) {
	s, g := NewSequence(5), NewTorch(5)
	s.every = 8
	const n = 3 * 8 * maxSaved
	fill := s.TruncNormal(n, 0, 1, -2, 2)
	want := make([]float32, n)
	g.TruncNormal(want, 0, 1, -2, 2)
	for _, from := range []int64{n - 10, 0, n/2 - 3} {
		got := make([]float32, 10)
		fill(got, from)
		require.Equal(t, want[from:from+10], got)
	}
	require.Less(t, len(s.saved), maxSaved)
}

func BenchmarkSequenceTruncNormal(b *testing.B) {
	v := make([]float32, 1<<16)
	fill := NewSequence(1).TruncNormal(int64(len(v)), 0, 0.02, -2, 2)
	b.SetBytes(int64(4 * len(v)))
	for b.Loop() {
		fill(v, 0)
	}
	b.ReportMetric(float64(len(v))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}

func BenchmarkSequenceNormal(b *testing.B) {
	v := make([]float32, 1<<16)
	fill := NewSequence(1).Normal(int64(len(v)), 0, 1)
	b.SetBytes(int64(4 * len(v)))
	for b.Loop() {
		fill(v, 0)
	}
	b.ReportMetric(float64(len(v))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}

func BenchmarkTwisterSkip(b *testing.B) {
	t := newTwister(1)
	for b.Loop() {
		t.skip(624 * 100)
	}
}
