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

// Epilogue finds the contractions that a sum could be made with, one after the other, and the term that the first starts
// from, nil if all are contractions. There are none where more terms than one are something else.
func Epilogue(sum *graph.Node) (products []*graph.Node, start *graph.Value) {
	if sum.Op != addOp {
		return nil, nil
	}
	seen := map[*graph.Value]bool{}
	for _, v := range sum.In {
		fits := v.Node.Op == einsumOp && v.Node.Phase == sum.Phase && v.DType == sum.Results[0].DType && v.Layout.Equal(sum.Results[0].Layout)
		switch {
		case fits && !seen[v]:
			products = append(products, v.Node)
		case start == nil:
			start = v
		default:
			return nil, nil
		}
		seen[v] = true
	}
	return products, start
}

// EinsumAdd is the contraction that product is, of a and b, plus c.
func EinsumAdd(g *graph.Graph, product *graph.Node, a, b, c *graph.Value) *graph.Value {
	return g.Add(einsumAddOp, product.Attr, a, b, c)[0]
}
