package op

import (
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// einsumAddOp is a contraction of its first two inputs, to which the third is added before it is rounded: a matrix
// product's epilogue. It is made after the graph was differentiated and laid out.
var einsumAddOp = &graph.Op{
	Name: "einsum_add",
	Rule: func(n *graph.Node) string {
		in, out, _ := strings.Cut(n.Attr.(EinsumAttr).Spec, "->")
		return in + "," + out + "->" + out
	},
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.Attr.(EinsumAttr).Out} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := einsum(n.Attr.(EinsumAttr).Spec, n.Results[0].Shape, in[:2]...)
		for i, x := range in[2].Data {
			out[0].Data[i] += x
		}
		return out
	},
}

// Epilogue finds the contraction that a sum of two could be made with, and the other term; nil if there is none.
func Epilogue(sum *graph.Node) (product *graph.Node, other *graph.Value) {
	if sum.Op != addOp || len(sum.In) != 2 {
		return nil, nil
	}
	for i, v := range sum.In {
		o := sum.In[1-i]
		if v.Node.Op == einsumOp && v.Node.Phase == sum.Phase && v.DType == o.DType && v.Layout.Equal(o.Layout) && v != o {
			return v.Node, o
		}
	}
	return nil, nil
}

// EinsumAdd is the contraction that product is, of a and b, plus c.
func EinsumAdd(g *graph.Graph, product *graph.Node, a, b, c *graph.Value) *graph.Value {
	return g.Add(einsumAddOp, product.Attr, a, b, c)[0]
}
