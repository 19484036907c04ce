package rng

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func normals(n int, seed uint64, fqn string, start int64, std float64) []float32 {
	v := make([]float32, n)
	FillNormal(v, seed, fqn, start, std)
	return v
}

func truncated3(n int, seed uint64) []float32 {
	v := make([]float32, n)
	FillTruncNormal(v, seed, "lm_head.weight", 0, 0.5, 1.5)
	return v
}

func TestSliceAloneHasTheSameBits(t *testing.T) {
	const n = 5000
	whole := normals(n, 7, "x", 0, 0.02)
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.IntRange(0, n).Draw(t, "from")
		to := rapid.IntRange(from, n).Draw(t, "to")
		require.Equal(t, whole[from:to], normals(to-from, 7, "x", int64(from), 0.02))
	})
}

// The values are a format: a seed means the same model on every machine and in every version.
func TestBitsAreFixed(t *testing.T) {
	sum := func(values []float32) string {
		b, err := binary.Append(nil, binary.LittleEndian, values)
		require.NoError(t, err)
		h := sha256.Sum256(b)
		return hex.EncodeToString(h[:8])
	}
	require.Equal(t, goldenNormal, sum(normals(1<<16, 42, "tok_embeddings.weight", 1<<33, 1)))
	require.Equal(t, goldenTruncated, sum(truncated3(1<<16, 42)))
}

const (
	goldenNormal    = "b359341410e01b42"
	goldenTruncated = "40d9d1281433d339"
)

func TestNormalMoments(t *testing.T) {
	const n = 1 << 22
	var m [5]float64
	for _, x := range normals(n, 1, "w", 0, 1) {
		p := 1.0
		for k := range m {
			m[k] += p / n
			p *= float64(x)
		}
	}
	// Four standard errors of the k-th raw moment of a normal sample: sqrt((2k-1)!! - m_k^2) / sqrt(n).
	for k, want := range []struct{ moment, deviation float64 }{{1, 0}, {0, 1}, {1, math.Sqrt2}, {0, math.Sqrt(15)}, {3, math.Sqrt(96)}} {
		require.InDelta(t, want.moment, m[k], 4*want.deviation/math.Sqrt(n)+1e-12, "moment %d", k)
	}
}

// kolmogorov is the largest distance between values' distribution and cdf, times sqrt(n).
func kolmogorov(values []float32, cdf func(float64) float64) float64 {
	values = slices.Sorted(slices.Values(values))
	n, worst := float64(len(values)), 0.0
	for i, x := range values {
		p := cdf(float64(x))
		worst = max(worst, p-float64(i)/n, float64(i+1)/n-p)
	}
	return worst * math.Sqrt(n)
}

func TestDistribution(t *testing.T) {
	normal := func(x float64) float64 { return math.Erfc(-x/math.Sqrt2) / 2 }
	cut := normal(-3)
	const n = 1 << 20
	const limit = 1.95 // exceeded by one sample in a thousand
	require.Less(t, kolmogorov(normals(n, 3, "w", 0, 1), normal), limit)
	require.Less(t, kolmogorov(truncated3(n, 3), func(x float64) float64 {
		return (normal(2*x) - cut) / (1 - 2*cut)
	}), limit)
	// Neighbours, and the same index under neighbouring seeds and names, are uncorrelated.
	a := normals(n+1, 3, "w", 0, 1)
	for name, b := range map[string][]float32{"next": a[1:], "seed": normals(n, 4, "w", 0, 1), "name": normals(n, 3, "x", 0, 1)} {
		dot := 0.0
		for i, x := range b {
			dot += float64(x) * float64(a[i])
		}
		require.Less(t, math.Abs(dot/math.Sqrt(n)), 4.0, name)
	}
}

func TestTails(t *testing.T) {
	const n = 1 << 24
	var over [6]float64
	for _, x := range normals(n, 5, "w", 0, 1) {
		for k := range over {
			if math.Abs(float64(x)) > float64(k) {
				over[k]++
			}
		}
	}
	for k := 1; k < len(over); k++ {
		want := n * math.Erfc(float64(k)/math.Sqrt2)
		require.InDelta(t, want, over[k], 4*math.Sqrt(want), "|x| > %d", k)
	}
}

func TestExtremeWords(t *testing.T) {
	d := sampler{scale: 1, std: 1, cut: math.MaxFloat32}
	var got [4]float32
	d.values(got[:], []uint32{0, 0x7fffffff, 0x80000000, 0xffffffff})
	require.InDelta(t, 6.3380, got[0], 1e-4, "the farthest value")
	require.InDelta(t, 0, got[1], 1e-9, "the nearest")
	require.Equal(t, got[0], -got[2])
	require.InDelta(t, 0, got[3], 1e-9)
}

func TestTruncNormalStaysInside(t *testing.T) {
	for _, cut := range []float64{0.001, 0.5, 1, 3, 7, 100} {
		v := make([]float32, 1<<16)
		FillTruncNormal(v, 9, "w", 0, 1, cut)
		for _, x := range v {
			require.LessOrEqual(t, math.Abs(float64(x)), float64(float32(cut)))
		}
		top := slices.Max(v)
		require.Greater(t, float64(top), min(cut, 4)*0.95, "cut %g: values reach up to it", cut)
	}
}

func TestTablesFollowTheQuantile(t *testing.T) {
	coarse, fine := coarseTable(), fineTable()
	for i := range 1 << 18 {
		v := math.Exp2(32 * float64(i) / (1 << 18))
		want := upperQuantile(v / 0x1p33)
		require.InDelta(t, want, coarse.coarse(v), 0x1p-32+want*0x1p-28, "v %g", v)
		require.InDelta(t, want, fine.fine(v), max(0x1p-5, want)*0x1p-44, "v %g", v)
	}
}

func TestQuantile(t *testing.T) {
	for i := 1; i < 1<<16; i++ {
		p := math.Exp2(-1 - 60*float64(i)/(1<<16))
		want := math.Sqrt2 * math.Erfinv(1-2*p) // p exact there down to 2^-20
		if p > 0x1p-20 {
			require.InEpsilon(t, want, upperQuantile(p), 1e-8)
		}
		require.InEpsilon(t, p, math.Erfc(upperQuantile(p)/math.Sqrt2)/2, 1e-13, "p %g", p)
	}
	require.Zero(t, upperTail(100))
	require.InEpsilon(t, math.Erfc(3/math.Sqrt2)/2, upperTail(3), 1e-14)
	require.Equal(t, 0.5, upperTail(0))
}

func BenchmarkFillNormal(b *testing.B) {
	v := make([]float32, 1<<16)
	b.SetBytes(int64(4 * len(v)))
	for b.Loop() {
		FillNormal(v, 42, "w", 0, 1)
	}
	b.ReportMetric(float64(len(v))*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mvalues/s")
}
