package op

import (
	"strings"

	"titan/libtitan/graph"
	"titan/libtitan/scalar"
)

// letters name the dims of ops that treat all dims alike.
const letters = "abcdefghijklmnopqrstuvwxyz"

var addOp = &graph.Op{
	Name: "add",
	Cut:  func(n *graph.Node) []string { return each(letters[:len(n.In[0].Shape)]) },
	Rule: func(n *graph.Node) string {
		l := letters[:len(n.In[0].Shape)]
		return strings.TrimSuffix(strings.Repeat(l+",", len(n.In)), ",") + "->" + l
	},
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		out := make([]*graph.Value, len(n.In))
		for i := range out {
			out[i] = d[0]
		}
		return out
	},
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		sum := in[0]
		for _, v := range in[1:] {
			sum = b.Add(sum, v)
		}
		return []scalar.Value{sum}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(in[0].Shape...)
		for _, a := range in {
			for i, x := range a.Data {
				out.Data[i] += x
			}
		}
		return []graph.Array{out}
	},
}

// Add sums values of one shape in their order, in one reduction.
func Add(g *graph.Graph, v ...*graph.Value) *graph.Value {
	if len(v) == 1 {
		return v[0]
	}
	return g.Add(addOp, nil, v...)[0]
}
