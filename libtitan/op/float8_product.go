package op

import (
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Float8ProductAttr is a contraction of two float8 tensors and its scales.
type Float8ProductAttr struct {
	Spec             string // of the tensors alone: "bsk,nk->bsn"
	Out              dtype.DType
	A, B             Scaling      // of tensors as in Spec
	Recipe           Float8Recipe // of its gradients
	Fast             bool         // sums may be kept in the few bits of tensor cores
	TurnedA, TurnedB bool         // the tensor comes with its last dim first
}

// TermsLast reports whether a tensor of the product, the first or the second, has the dims that are summed over after the others.
func (a Float8ProductAttr) TermsLast(second bool) bool {
	term, other, out := a.terms()
	if second {
		term, other = other, term
	}
	summed := func(l byte) bool { return strings.IndexByte(out, l) < 0 && strings.IndexByte(other, l) >= 0 }
	return summed(term[len(term)-1])
}

// Stored is Spec of the tensors as they come.
func (a Float8ProductAttr) Stored() string {
	first, second, out := a.terms()
	if a.TurnedA {
		first = turned(first)
	}
	if a.TurnedB {
		second = turned(second)
	}
	return first + "," + second + "->" + out
}

// terms are the dims of the two inputs and of the result.
func (a Float8ProductAttr) terms() (first, second, out string) {
	in, out, _ := strings.Cut(a.Spec, "->")
	first, second, _ = strings.Cut(in, ",")
	return first, second, out
}

// Its inputs are two results of float8_cast each: the numbers and the reciprocals of their scales.
var float8ProductOp = &graph.Op{
	Name:   "float8_product",
	CanAdd: true,
	Rule: func(n *graph.Node) string {
		a := n.Attr.(Float8ProductAttr)
		first, second, _ := a.terms()
		in, out, _ := strings.Cut(a.Stored(), "->")
		storedFirst, storedSecond, _ := strings.Cut(in, ",")
		return strings.Join([]string{storedFirst, a.A.Of(first), storedSecond, a.B.Of(second)}, ",") + "->" + out
	},
	Cut:    func(n *graph.Node) []string { return each(n.Attr.(Float8ProductAttr).Spec) },
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.Attr.(Float8ProductAttr).Out} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		dx, dw := n.Attr.(Float8ProductAttr).gradients(g, n, d[0])
		return []*graph.Value{dx, nil, dw, nil}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		a := n.Attr.(Float8ProductAttr)
		x, y := in[0], in[2]
		if a.TurnedA {
			x = straight(x)
		}
		if a.TurnedB {
			y = straight(y)
		}
		return einsum(a.Spec, n.Results[0].Shape, descaled(x, in[1], a.A), descaled(y, in[3], a.B))
	},
}

// descaled is what float8 numbers stand for.
func descaled(q, inverse graph.Array, per Scaling) graph.Array {
	out := graph.NewArray(q.Shape...)
	_, width := rows(q)
	for i, x := range q.Data {
		out.Data[i] = x * inverse.Data[per.At(i, width)]
	}
	return out
}

// apply contracts two operands by op, the product's.
func (a Float8ProductAttr) apply(g *graph.Graph, op *graph.Op, x, y float8Operand) *graph.Value {
	a.A, a.B = x.per, y.per
	return g.Add(op, a, x.q, x.inverse, y.q, y.inverse)[0]
}
