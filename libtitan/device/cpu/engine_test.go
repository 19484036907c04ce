package cpu

import (
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// engines gives one Engine per instruction set this CPU has and number of threads.
func engines(threads ...int) []*Engine {
	var es []*Engine
	for _, k := range availableKernels() {
		for _, t := range threads {
			es = append(es, &Engine{threads: t, k: k})
		}
	}
	return es
}

func random(seed uint64, n int) []float32 {
	r := rand.New(rand.NewPCG(seed, 1))
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

func bf16(x []float32) []uint16 {
	y := make([]uint16, len(x))
	dtype.NarrowBF16(y, x)
	return y
}

func fromBF16(x []uint16) []float32 {
	y := make([]float32, len(x))
	dtype.WidenBF16(y, x)
	return y
}

// near requires |got-want| <= tol*(1+|want|) in each element.
func near(t *testing.T, want []float64, got []float32, tol float64, msg ...any) {
	t.Helper()
	require.Len(t, got, len(want), msg...)
	for i, w := range want {
		g := float64(got[i])
		if g == w || math.Abs(g-w) <= tol*(1+math.Abs(w)) {
			continue
		}
		require.Failf(t, "too far", "element %d: want %g got %g (%v)", i, w, g, msg)
	}
}

// sameBits requires equal elements and names the first that differs; NaN differs from itself.
func sameBits[T float32 | uint16](t require.TestingT, want, got []T, msg ...any) {
	require.Len(t, got, len(want), msg...)
	for i, w := range want {
		if w != got[i] {
			require.Fail(t, "other bits", "element %d: want %v got %v (%v)", i, w, got[i], msg)
		}
	}
}

func f64(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func TestForCoversEachIndexOnce(t *testing.T) {
	for _, e := range engines(1, 2, 5) {
		for _, n := range []int{0, 1, 7, 8, 100} {
			seen := make([]atomic.Int32, n)
			e.For(n, 8, func(lo, hi int) {
				require.Zero(t, lo%8)
				for i := lo; i < hi; i++ {
					seen[i].Add(1)
				}
			})
			for i := range seen {
				require.EqualValues(t, 1, seen[i].Load(), "index %d of %d", i, n)
			}
		}
	}
}

func TestNewRefusesUnknownOptions(t *testing.T) {
	_, err := New(Options{Products: "mkl"})
	require.ErrorContains(t, err, "want builtin or onednn")
	_, err = New(Options{Threads: -1})
	require.ErrorContains(t, err, "threads -1")
	e, err := New(Options{})
	require.NoError(t, err)
	require.Equal(t, bestKernels().name, e.Name())
}
