package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
)

// Products in every arrangement against the host's; float32 is not rounded to TF32.
func TestProduct(t *testing.T) {
	host, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	for _, size := range [][3]int{{64, 96, 128}, {130, 70, 300}, {33, 17, 9}, {512, 1024, 256}} {
		for _, kind := range []struct{ in, out dtype.DType }{{dtype.Float32, dtype.Float32}, {dtype.BFloat16, dtype.BFloat16}, {dtype.BFloat16, dtype.Float32}} {
			for turn := range 4 {
				p := Product{M: size[0], N: size[1], K: size[2], TransA: turn&1 > 0, TransB: turn&2 > 0, In: kind.in, Out: kind.out}
				t.Run(fmt.Sprint(p, p.TransA, p.TransB, p.Out), func(t *testing.T) {
					e := gpu(t)
					a, b := random(t, e, p.In, 1, p.M*p.K), random(t, e, p.In, 2, p.K*p.N)
					c := blank(t, e, p.Out, p.M*p.N)
					does(t)(e.Product(p, c.p, a.p, b.p))
					want := make([]float32, p.M*p.N)
					lda, ldb := p.K, p.N
					if p.TransA {
						lda = p.M
					}
					if p.TransB {
						ldb = p.K
					}
					host.Gemm(p.TransA, p.TransB, p.M, p.N, p.K, floats(a.host), floats(b.host), want, lda, ldb, p.N, false)
					// Both round float32 sums of K terms around √K, in other orders; factors rounded to TF32 would be off by 5e-4·√K.
					float := 2e-6 * math.Sqrt(float64(p.K))
					near(t, wide(want), c, tolerance(p.Out, float), "product")
					if p.Out != dtype.Float32 {
						return
					}
					p.Add = true
					does(t)(e.Product(p, c.p, a.p, b.p))
					for i := range want {
						want[i] *= 2
					}
					near(t, wide(want), c, 2*float, "added")
				})
			}
		}
	}
}

func TestEmptyProduct(t *testing.T) {
	e := gpu(t)
	c := blank(t, e, dtype.Float32, 12)
	does(t)(e.Product(Product{M: 3, N: 4, In: dtype.Float32, Out: dtype.Float32}, c.p, 0, 0))
	near(t, make([]float64, 12), c, 0, "zeros")
}

func wide(x []float32) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// The algorithm that wins gives what the library's first does, and leaves what is added to as it was while it competes.
func TestCompetingProducts(t *testing.T) {
	for _, p := range []Product{
		{M: 2048, N: 512, K: 1024, TransB: true, In: dtype.BFloat16, Out: dtype.BFloat16},
		{M: 2048, N: 1024, K: 512, In: dtype.BFloat16, Out: dtype.BFloat16, Add: true},
		{M: 512, N: 1024, K: 2048, TransA: true, In: dtype.BFloat16, Out: dtype.Float32, Add: true},
		{M: 8192, N: 8192, K: fewTerms, TransB: true, In: dtype.BFloat16, Out: dtype.BFloat16}, // more operations, few terms
	} {
		t.Run(p.String(), func(t *testing.T) {
			e := gpu(t)
			a, b := random(t, e, p.In, 1, p.M*p.K), random(t, e, p.In, 2, p.K*p.N)
			first, winner := firstAndWinner(t, e, p.Out, p.M*p.N, func(c Ptr) (Work, error) {
				delete(e.blas.products, p)
				return e.Product(p, c, a.p, b.p)
			})
			near(t, first, winner, 2*tolerance(p.Out, 2e-6*math.Sqrt(float64(p.K))), "the winner") // both round
		})
	}
}

func TestCompetingFloat8Products(t *testing.T) {
	e4, e5 := dtype.Float8E4M3FN, dtype.Float8E5M2
	for _, p := range []Float8Product{
		{M: 2048, N: 512, K: 1024, A: e4, B: e4, Out: dtype.BFloat16, Fast: true},
		{M: 512, N: 1024, K: 2048, A: e5, B: e4, Out: dtype.Float32, Fast: true, Add: true},
		{M: 2048, N: 512, K: 1024, A: e4, B: e4, Out: dtype.BFloat16, RowsA: true, RowsB: true, Fast: true},
	} {
		t.Run(p.String(), func(t *testing.T) {
			e := gpu(t)
			a, aInverse, _ := float8Operand(t, e, p.A, p.M, p.K, p.RowsA)
			b, bInverse, _ := float8Operand(t, e, p.B, p.N, p.K, p.RowsB)
			first, winner := firstAndWinner(t, e, p.Out, p.M*p.N, func(c Ptr) (Work, error) {
				delete(e.blas.float8, p)
				return e.Float8Product(p, c, a, aInverse, b, bInverse)
			})
			off, size := 0.0, 0.0
			for i, x := range winner.get() {
				off, size = off+(x-first[i])*(x-first[i]), size+first[i]*first[i]
			}
			t.Logf("apart by %.2g of the whole", math.Sqrt(off/size))
			require.LessOrEqual(t, math.Sqrt(off/size), 4e-3) // results are bfloat16, or fast sums of 13 bits
		})
	}
}

// firstAndWinner are what a product into n random numbers leaves by the library's first algorithm and by the winner.
func firstAndWinner(t *testing.T, e *Engine, kind dtype.DType, n int, product func(c Ptr) (Work, error)) (first []float64, winner array) {
	by := func(same bool) array {
		c := random(t, e, kind, 3, n)
		e.Deterministic = same
		defer func() { e.Deterministic = false }()
		does(t)(product(c.p))
		return c
	}
	return by(true).get(), by(false)
}
