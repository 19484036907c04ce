package op

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

var float8Recipes = []Float8Recipe{Tensorwise, Rowwise, RowwiseGWHigh}

// linears is a linear layer, its gradients, and the same by a recipe.
type linears struct {
	x, w, seed *graph.Value
	out        [2]*graph.Value
	dx, dw     [2]*graph.Value
	g          *graph.Graph
}

func twoLinears(t *testing.T, r Float8Recipe) *linears {
	l := &linears{}
	g, err := graph.Trace(dtype.Float32, func(g *graph.Graph) {
		f := func(shape ...int) graph.Type { return graph.Type{DType: dtype.Float32, Shape: shape} }
		l.x, l.w, l.seed = g.Input("x", f(2, 3, 4)), g.Param("w", []int64{5, 4}), g.Input("seed", f(2, 3, 5))
		l.out = [2]*graph.Value{Einsum(g, "bsk,nk->bsn", l.x, l.w), Float8Linear(g, r, l.x, l.w)}
		for i, out := range l.out {
			d := backward(g, out, l.seed, []*graph.Value{l.x, l.w})
			l.dx[i], l.dw[i] = d[0], d[1]
		}
	})
	require.NoError(t, err)
	l.g = g
	return l
}

// run evaluates both on numbers that draw makes.
func (l *linears) run(t *testing.T, draw func(v *graph.Value, i int) float64) map[*graph.Value]graph.Array {
	feed := map[*graph.Value]graph.Array{}
	for _, v := range []*graph.Value{l.x, l.w, l.seed} {
		a := graph.NewArray(v.Shape...)
		for i := range a.Data {
			a.Data[i] = draw(v, i)
		}
		feed[v] = a
	}
	vals, err := Eval(l.g, feed)
	require.NoError(t, err)
	return vals
}

// Where float8 holds every number exactly, the three products are those of the plain layer, to the bit: the scales, their
// reciprocals and the letters of each recipe are right.
func TestFloat8LinearIsExactWhereItsNumbersAre(t *testing.T) {
	for _, r := range float8Recipes {
		t.Run(string(r), func(t *testing.T) {
			l := twoLinears(t, r)
			rng := rand.New(rand.NewPCG(3, 4))
			// Largest magnitudes of 7·2^k in e4m3 and e5m2 scale by powers of 2 in every row, column and tensor.
			vals := l.run(t, func(v *graph.Value, i int) float64 {
				return float64([]int{-7, 7}[rng.IntN(2)]) * []float64{1, 1, 0.5, 0.25}[i%4*(i/4%2)]
			})
			for i, pair := range [][2]*graph.Value{l.out, l.dx, l.dw} {
				require.Equal(t, pair[0].Type.String(), pair[1].Type.String())
				require.Equal(t, vals[pair[0]].Data, vals[pair[1]].Data, "product %d", i)
			}
		})
	}
}

// On any numbers they are within the rounding of their operands: half of 2^-3 in e4m3, half of 2^-2 in e5m2, of the sum of
// magnitudes.
func TestFloat8LinearIsNear(t *testing.T) {
	for _, r := range float8Recipes {
		l := twoLinears(t, r)
		rng := rand.New(rand.NewPCG(5, 6))
		vals := l.run(t, func(*graph.Value, int) float64 { return rng.NormFloat64() })
		for _, pair := range [][2]*graph.Value{l.out, l.dx, l.dw} {
			n := pair[0].Node
			size := einsum(n.Attr.(EinsumAttr).Spec, pair[0].Shape, magnitudes(vals[n.In[0]]), magnitudes(vals[n.In[1]]))[0]
			differ := 0
			for i, want := range vals[pair[0]].Data {
				got := vals[pair[1]].Data[i]
				require.InDelta(t, want, got, 0.2*size.Data[i], "%s, %s", r, n)
				if want != got {
					differ++
				}
			}
			require.Equal(t, r == RowwiseGWHigh && pair == l.dw, differ == 0, "%s rounds in %s", r, n)
		}
	}
}

func magnitudes(a graph.Array) graph.Array {
	out := graph.NewArray(a.Shape...)
	for i, x := range a.Data {
		out.Data[i] = math.Abs(x)
	}
	return out
}

// A tensor of zeros is made of zeros, forward and backward. One infinity or NaN makes a NaN, so that the step is noticed.
func TestFloat8OfZerosAndInfinities(t *testing.T) {
	for _, r := range float8Recipes {
		l := twoLinears(t, r)
		for _, zero := range []*graph.Value{l.x, l.w, l.seed} {
			vals := l.run(t, func(v *graph.Value, i int) float64 {
				if v == zero {
					return 0
				}
				return float64(i%3) + 1
			})
			for _, pair := range [][2]*graph.Value{l.out, l.dx, l.dw} {
				for i, want := range vals[pair[0]].Data {
					require.InDelta(t, want, vals[pair[1]].Data[i], 0.2*math.Abs(want), "%s, %s is zero", r, zero.Name())
				}
			}
		}
		for _, bad := range []float64{math.Inf(1), math.Inf(-1), math.NaN()} {
			vals := l.run(t, func(v *graph.Value, i int) float64 {
				if v == l.x && i == 5 {
					return bad
				}
				return float64(i%3) + 1
			})
			nan := 0
			for _, y := range vals[l.out[1]].Data {
				if math.IsNaN(y) {
					nan++
				}
			}
			require.NotZero(t, nan, "%s of %v", r, bad)
		}
	}
}

// The gradient of the scaled product by what its operand stands for, against central differences: the operand of tensorwise's
// backward is that of its forward, so with a gradient that e5m2 holds nothing is rounded in between.
func TestFloat8ProductByFiniteDifferences(t *testing.T) {
	l := twoLinears(t, Tensorwise)
	rng := rand.New(rand.NewPCG(7, 8))
	vals := l.run(t, func(v *graph.Value, i int) float64 {
		if v == l.seed {
			return math.Ldexp(1, i%3)
		}
		return rng.NormFloat64()
	})
	product := l.out[1].Node
	in := make([]graph.Array, 4)
	for i, v := range product.In {
		in[i] = vals[v]
	}
	value := func() (sum float64) {
		for i, y := range product.Op.Eval(product, in)[0].Data {
			sum += y * vals[l.seed].Data[i]
		}
		return sum
	}
	for k, grad := range []*graph.Value{l.dx[1], l.dw[1]} {
		q, inverse := in[2*k].Data, in[2*k+1].Data[0]
		for i, got := range vals[grad].Data {
			old := q[i]
			q[i] = old + 1
			up := value()
			q[i] = old - 1
			down := value()
			q[i] = old
			require.InDelta(t, (up-down)/(2*inverse), got, 1e-5*(1+math.Abs(got)), "operand %d element %d", k, i)
		}
	}
}
