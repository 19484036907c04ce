package cuda

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

func fusedSize(k scalar.Kind, rows, width int) int {
	return map[scalar.Kind]int{scalar.Full: rows * width, scalar.Row: rows, scalar.Col: width, scalar.One: 1}[k]
}

// Every fused program gives its definition in float64, in both types, on rows of every kind of width; a sum over rows is
// added to what is there.
func TestFused(t *testing.T) {
	for _, c := range []struct{ rows, dim int }{{1, 8}, {5, 16}, {37, 256}, {600, 2048}, {300, 4096}, {9, 8192}, {21, 33}, {3, 1000}, {300, 1004}} {
		for _, kind := range computed {
			programs := fusedPrograms(kind)
			for _, name := range slices.Sorted(maps.Keys(programs)) {
				t.Run(fmt.Sprintf("%s/%v/%v", name, c, kind), func(t *testing.T) { checkFused(t, programs[name], kind, c.rows, c.dim) })
			}
		}
	}
}

// Of so many elements, blocks of a flat kernel that finds a largest magnitude go on to others.
func TestFusedLargestOfMany(t *testing.T) {
	checkFused(t, fusedPrograms(dtype.BFloat16)["two and their largest"], dtype.BFloat16, 4800, 2048)
}

func checkFused(t *testing.T, p *scalar.Program, kind dtype.DType, rows, dim int) {
	e := gpu(t)
	var in, out []Ptr
	var host [][]float64
	for i, o := range p.In {
		a := random(t, e, o.DType, uint64(i), fusedSize(o.Kind, rows, dim))
		in, host = append(in, a.p), append(host, a.host)
	}
	want := scalar.Eval(p, host, rows, dim)
	var got []array
	for i, o := range p.Out {
		a := blank(t, e, o.DType, len(want[i]))
		if o.Kind == scalar.Col {
			a = random(t, e, o.DType, 9, len(want[i]))
			for j, x := range a.host {
				want[i][j] += x
			}
		}
		got, out = append(got, a), append(out, a.p)
	}
	add := make([]bool, len(out))
	for i, o := range p.Out {
		add[i] = o.Kind == scalar.Col
	}
	does(t)(e.Fused(p, rows, dim, in, out, add))
	for i, o := range p.Out {
		allowed := tolerance(kind, 5e-6)
		if kind == dtype.BFloat16 {
			allowed *= 2 // what is stored on the way is rounded too
		}
		if o.Kind == scalar.Col {
			allowed = 2e-5 * float64(1+rows/100)
			if kind == dtype.BFloat16 {
				allowed = 1e-4
			}
		}
		near(t, want[i], got[i], allowed, fmt.Sprintf("result %d %v", i, o.Kind))
	}
}

// A product with something added to it in its epilogue.
func TestProductPlus(t *testing.T) {
	for _, kind := range computed {
		t.Run(kind.String(), func(t *testing.T) {
			e := gpu(t)
			const m, n, k = 70, 96, 64
			a, b, c := random(t, e, kind, 1, m*k), random(t, e, kind, 2, n*k), random(t, e, kind, 3, m*n)
			d := blank(t, e, kind, m*n)
			does(t)(e.ProductPlus(Product{M: m, N: n, K: k, TransB: true, In: kind, Out: kind}, d.p, a.p, b.p, c.p))
			want := slices.Clone(c.host)
			for i := range m {
				for j := range n {
					for l := range k {
						want[i*n+j] += a.host[i*k+l] * b.host[j*k+l]
					}
				}
			}
			near(t, want, d, tolerance(kind, 1e-5), "sum")
			near(t, c.host, c, 0, "what was added stays")
		})
	}
}

// Bytes are those that a kernel must move: what it reads, and what it writes.
func BenchmarkFused(b *testing.B) {
	const T, D, F = 8192, 4096, 14336
	bf := dtype.BFloat16
	e := gpu(b)
	programs := fusedPrograms(bf)
	for _, c := range []struct {
		name string
		dim  int
	}{{"sum and norm", D}, {"sum and norm", 2048}, {"norm and its largest", D}, {"backward of a norm between sums", D}, {"backward of a norm between sums", 2048}, {"backward of a norm between sums and its largest", D}, {"backward of a norm between sums and its largest", 2048}, {"norm again and its backward between sums", D}, {"norm again and its backward between sums", 2048}, {"swiglu and its backward", F}, {"sum of sums", D}} {
		p, rows := programs[c.name], T*D/c.dim
		if c.dim == F {
			rows = T
		}
		f, err := formOf(p, c.dim, fusedThreads)
		require.NoError(b, err)
		b.Run(fmt.Sprintf("%s/%d", c.name, c.dim), func(b *testing.B) {
			gpu(b)
			bytes := 0.0
			bind := func() (Work, error) {
				bytes = 0
				ports := func(list []scalar.Port) (out []Ptr) {
					for _, o := range list {
						n := fusedSize(o.Kind, rows, c.dim)
						bytes += float64(n * o.DType.Size())
						out = append(out, noise(b, e, o.DType, n))
					}
					return out
				}
				in, out := ports(p.In), ports(p.Out)
				return e.fused(p, rows, c.dim, in, out, make([]bool, len(out)), f)
			}
			works := sets(b, 3, bind)
			bench(b, e, bytes, 0, works...)
		})
	}
}

// A product's epilogue against the product and a sum.
func BenchmarkProductPlus(b *testing.B) {
	const T, D, F = 8192, 4096, 14336
	bf := dtype.BFloat16
	e := gpu(b)
	for _, k := range []int{D, F} {
		for _, how := range []string{"product", "plus", "product and sum"} {
			b.Run(fmt.Sprintf("%d/%s", k, how), func(b *testing.B) {
				gpu(b)
				p := Product{M: T, N: D, K: k, TransB: true, In: bf, Out: bf}
				works := sets(b, 2, func() (Work, error) {
					x, w, c, y := noise(b, e, bf, T*k), noise(b, e, bf, D*k), noise(b, e, bf, T*D), noise(b, e, bf, T*D)
					if how == "plus" {
						return e.ProductPlus(p, y, x, w, c)
					}
					first, err := e.Product(p, y, x, w)
					if err != nil || how == "product" {
						return first, err
					}
					second, err := e.Add(bf, c, T*D, c, y)
					return sequence(first, second), err
				})
				bench(b, e, 0, 2*float64(T)*float64(D)*float64(k), works...)
			})
		}
	}
}
