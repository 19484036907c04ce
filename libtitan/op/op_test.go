package op

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Every op's VJP against central differences of its float64 reference, in a random direction per input.
func TestGradientsByFiniteDifferences(t *testing.T) {
	f := func(shape ...int) graph.Type { return graph.Type{DType: dtype.Float32, Shape: shape} }
	ids := func(shape ...int) graph.Type { return graph.Type{DType: dtype.Int32, Shape: shape} }
	cases := []struct {
		name  string
		in    []graph.Type
		build func(g *graph.Graph, in []*graph.Value) *graph.Value
	}{
		{"einsum linear", []graph.Type{f(2, 3, 4), f(5, 4)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Einsum(g, "bsk,nk->bsn", in[0], in[1])
		}},
		{"einsum batched", []graph.Type{f(2, 3, 4), f(2, 4, 5)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Einsum(g, "bij,bjk->bik", in[0], in[1])
		}},
		{"add", []graph.Type{f(2, 3), f(2, 3), f(2, 3)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Add(g, in[0], in[1], in[2], in[0])
		}},
		{"cast", []graph.Type{f(2, 3)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Cast(g, in[0], dtype.Float64)
		}},
		{"embedding", []graph.Type{ids(2, 5), f(4, 3)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Embedding(g, in[0], in[1])
		}},
		{"rmsnorm", []graph.Type{f(2, 3, 7), f(7)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return RMSNorm(g, in[0], in[1], 1e-2)
		}},
		{"rope", []graph.Type{f(2, 5, 3, 4)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			cos, sin := RopeTable(g, RopeTableAttr{SeqLen: 5, HeadDim: 4, Theta: 100})
			return Rope(g, in[0], cos, sin)
		}},
		{"attention", []graph.Type{f(2, 5, 4, 3), f(2, 5, 2, 3), f(2, 5, 2, 3)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return Attention(g, in[0], in[1], in[2])
		}},
		{"swiglu", []graph.Type{f(2, 3, 4), f(2, 3, 4)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return SwiGLU(g, in[0], in[1])
		}},
		{"heads", []graph.Type{f(2, 3, 12)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return MergeHeads(g, SplitHeads(g, SplitHeads(g, in[0], 4, 3).Node.In[0], 6, 2))
		}},
		{"cross_entropy", []graph.Type{f(2, 5, 4), ids(2, 5)}, func(g *graph.Graph, in []*graph.Value) *graph.Value {
			return CrossEntropy(g, in[0], in[1])
		}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(1, 2))
			var in, grads []*graph.Value
			var out, seed *graph.Value
			g, err := graph.Trace(dtype.Float32, func(g *graph.Graph) {
				for _, typ := range c.in {
					in = append(in, g.Input("x", typ))
				}
				out = c.build(g, in)
				seed = g.Input("seed", out.Type)
				grads = backward(g, out, seed, in)
			})
			require.NoError(t, err)
			feed := map[*graph.Value]graph.Array{}
			for i, v := range append([]*graph.Value{seed}, in...) {
				a := graph.NewArray(v.Shape...)
				for j := range a.Data {
					a.Data[j] = rng.NormFloat64()
					if v.DType == dtype.Int32 {
						a.Data[j] = float64(rng.IntN(4))
					}
				}
				if c.name == "cross_entropy" && i == 2 {
					a.Data[3] = Ignored
				}
				feed[v] = a
			}
			value := func() (sum float64) {
				vals, err := Eval(g, feed)
				require.NoError(t, err)
				for j, y := range vals[out].Data {
					sum += y * feed[seed].Data[j]
				}
				return sum
			}
			vals, err := Eval(g, feed)
			require.NoError(t, err)
			for i, v := range in {
				if v.DType == dtype.Int32 {
					require.Nil(t, grads[i])
					continue
				}
				require.Equal(t, v.Shape, grads[i].Shape)
				for j, got := range vals[grads[i]].Data {
					x := feed[v].Data
					old, eps := x[j], 1e-5
					x[j] = old + eps
					up := value()
					x[j] = old - eps
					down := value()
					x[j] = old
					require.InDelta(t, (up-down)/(2*eps), got, 1e-7*(1+math.Abs(got)), "input %d element %d", i, j)
				}
			}
		})
	}
}

// backward walks g from out to in by the ops' VJPs; sums in the order of discovery.
func backward(g *graph.Graph, out, seed *graph.Value, in []*graph.Value) []*graph.Value {
	adj := map[*graph.Value][]*graph.Value{out: {seed}}
	for i := out.Node.ID; i >= 0; i-- {
		n := g.Nodes[i]
		d := make([]*graph.Value, len(n.Results))
		live := false
		for k, v := range n.Results {
			if len(adj[v]) > 0 {
				d[k], live = Add(g, adj[v]...), true
			}
		}
		if !live || n.Op.VJP == nil {
			continue
		}
		for k, dv := range n.Op.VJP(g, n, d) {
			if dv != nil {
				adj[n.In[k]] = append(adj[n.In[k]], dv)
			}
		}
	}
	grads := make([]*graph.Value, len(in))
	for i, v := range in {
		if len(adj[v]) > 0 {
			grads[i] = Add(g, adj[v]...)
		}
	}
	return grads
}

func TestRulesNameWhatDisagrees(t *testing.T) {
	_, err := graph.Trace(dtype.Float32, func(g *graph.Graph) {
		defer g.Scope("layers.3.wq")()
		x := g.Input("x", graph.Type{DType: dtype.Float32, Shape: []int{2, 3, 4}})
		w := g.Input("w", graph.Type{DType: dtype.Float32, Shape: []int{5, 6}})
		Einsum(g, "bsk,nk->bsn", x, w)
	})
	require.EqualError(t, err, "graph: module layers.3.wq: einsum: input 1 has shape [5 6], but k is 4 in rule bsk,nk->bsn")
}

// PyTorch's frequencies for a head of 16, theta 500000 and Llama 3.1's scaling (float32, bit for bit).
func TestRopeFrequenciesEqualTorch(t *testing.T) {
	a := RopeTableAttr{SeqLen: 1, HeadDim: 16, Theta: 500000, Factor: 8, LowFreq: 1, HighFreq: 4, OriginalMaxLen: 8192}
	want := []float64{0x1.0p+0, 0x1.8d2760p-3, 0x1.341190p-5, 0x1.ddee9ep-8, 0x1.132ba4p-11, 0x1.1f91f0p-15, 0x1.be2188p-18, 0x1.5a0f4ep-20}
	for i, f := range a.Frequencies() {
		require.Equal(t, float32(want[i]), f, "frequency %d", i)
	}
}

// The angles stay float32 whatever the model computes in: at bfloat16's precision 256 and 257 would be one position.
func TestRopeTellsPositions256And257Apart(t *testing.T) {
	a := RopeTableAttr{SeqLen: 272, HeadDim: 16, Theta: 500000}
	cos, sin := make([]float32, 2*8), make([]float32, 2*8)
	a.Fill(cos, sin, 256)
	require.NotEqual(t, cos[0], cos[8])
	require.NotEqual(t, sin[0], sin[8])
}
