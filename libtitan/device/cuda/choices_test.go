package cuda

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// BenchmarkChoices compares the algorithms that the library offers for the products of llama3-1b and llama3-8b at 16,384 and 8,192
// tokens: TFLOP/s of the first, the best, and all in turn.
func BenchmarkChoices(b *testing.B) {
	e := gpu(b)
	bf, f32 := dtype.BFloat16, dtype.Float32
	for _, c := range []struct {
		name         string
		tokens, k, n int
	}{
		{"1B q", 16384, 2048, 2048}, {"1B kv", 16384, 2048, 512}, {"1B qkv", 16384, 2048, 3072}, {"1B w1", 16384, 2048, 8192}, {"1B w13", 16384, 2048, 16384}, {"1B w2", 16384, 8192, 2048},
		{"1B head", 16384, 2048, 128256}, {"8B q", 8192, 4096, 4096}, {"8B kv", 8192, 4096, 1024}, {"8B qkv", 8192, 4096, 6144}, {"8B w1", 8192, 4096, 14336}, {"8B w2", 8192, 14336, 4096},
	} {
		for _, p := range []Product{
			{M: c.tokens, N: c.n, K: c.k, TransB: true, In: bf, Out: bf},
			{M: c.tokens, N: c.n, K: c.k, TransB: true, In: bf, Out: bf, Add: true},
			{M: c.tokens, N: c.k, K: c.n, In: bf, Out: bf},
			{M: c.tokens, N: c.k, K: c.n, In: bf, Out: bf, Add: true},
			{M: c.n, N: c.k, K: c.tokens, TransA: true, In: bf, Out: f32},
		} {
			b.Run(fmt.Sprintf("%s %v %v", c.name, p, p.Add), func(b *testing.B) {
				gpu(b)
				x, y, z := noise(b, e, p.In, p.M*p.K), noise(b, e, p.In, p.K*p.N), noise(b, e, p.Out, p.M*p.N)
				d, err := e.blas.plan(p)
				require.NoError(b, err)
				algos, err := e.blas.choices(p.String(), d, 6)
				require.NoError(b, err)
				total := make([]float64, len(algos))
				term := Ptr(0)
				if p.Add {
					term = z
				}
				for range rounds {
					for i := range algos {
						d.algo = algos[i]
						ms, err := e.timeOf(e.blas.bind(e.Stream, p, d, z, x, y, term), burst)
						require.NoError(b, err)
						total[i] += float64(ms)
					}
				}
				var all []string
				best := 0.0
				for i := range total {
					total[i] = 2 * float64(p.M) * float64(p.N) * float64(p.K) * rounds * burst / total[i] / 1e9
					best = max(best, total[i])
					all = append(all, fmt.Sprintf("%.0f", total[i]))
				}
				b.Logf("%-10s %d x %d x %d add %v: first %.0f, best %.0f (%+.1f%%): %s", c.name, p.M, p.N, p.K, p.Add, total[0], best, 100*(best/total[0]-1), strings.Join(all, " "))
			})
		}
	}
}
