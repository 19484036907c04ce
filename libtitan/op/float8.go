package op

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Float8Recipe is how a linear layer's three products are made of float8 operands (torchao's recipes of these names).
type Float8Recipe string

// The recipes.
const (
	Tensorwise    Float8Recipe = "tensorwise"         // one scale a tensor; gradients in e5m2, which reaches further
	Rowwise       Float8Recipe = "rowwise"            // one, a power of 2, for each row of each product's operands; all in e4m3
	RowwiseGWHigh Float8Recipe = "rowwise_with_gw_hp" // rowwise, but the weight's gradient is a product of what was not rounded
)

// float8Operand is a tensor as a product takes it.
type float8Operand struct {
	q, inverse *graph.Value
	per        Scaling
}

// operand makes v float8, once: layers of one input share it.
func (r Float8Recipe) operand(g *graph.Graph, v *graph.Value, to dtype.DType, per Scaling) float8Operand {
	a := Float8CastAttr{To: to, Per: per, Power2: r != Tensorwise}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if n := g.Nodes[i]; n.Op == float8CastOp && n.In[0] == v && n.Attr == a {
			return float8Operand{n.Results[0], n.Results[1], per}
		}
	}
	q, inverse := Float8Cast(g, v, Amax(g, v, per), a)
	return float8Operand{q, inverse, per}
}

// Float8Linear is x·wᵀ by recipe r: x [B, S, K], w [N, K], the result [B, S, N] in x's type. With one scale for all of it a stored
// weight is made float8 where it is stored, from float32; by row it is rounded to w's type, and gathered, before.
func Float8Linear(g *graph.Graph, r Float8Recipe, x, w *graph.Value) *graph.Value {
	per := r.per(PerRow)
	if per == PerTensor {
		w = uncast(w)
	}
	a := Float8ProductAttr{Spec: "bsk,nk->bsn", Out: x.DType, Recipe: r, Fast: true}
	return a.apply(g, float8ProductOp, r.operand(g, x, dtype.Float8E4M3FN, per), r.operand(g, w, dtype.Float8E4M3FN, per))
}

// per is how a recipe scales an operand whose products want one scale for each of its rows or columns.
func (r Float8Recipe) per(s Scaling) Scaling {
	if r == Tensorwise {
		return PerTensor
	}
	return s
}

// uncast is the value from which v was cast.
func uncast(v *graph.Value) *graph.Value {
	if v.Node.Op == castOp {
		return v.Node.In[0]
	}
	return v
}

// gradients of a linear layer's input and weight. Those of tensorwise reuse the operands of the forward; by row, what a
// product sums over has another direction, and the operands are made anew from the values before the cast.
func (a Float8ProductAttr) gradients(g *graph.Graph, n *graph.Node, dy *graph.Value) (dx, dw *graph.Value) {
	first, second, out := a.terms()
	x, w := n.In[0].Node.In[0], n.In[2].Node.In[0] // as they were before the cast
	ofX, ofW := float8Operand{n.In[0], n.In[1], a.A}, float8Operand{n.In[2], n.In[3], a.B}
	r, to := a.Recipe, dtype.Float8E5M2
	switch r {
	case Rowwise:
		to = dtype.Float8E4M3FN
		ofX, ofW = r.operand(g, x, to, PerColumn), r.operand(g, w, to, PerColumn)
	case RowwiseGWHigh:
		to = dtype.Float8E4M3FN
		ofW = r.operand(g, uncast(w), to, PerTensor)
	}
	a.Spec, a.Out, a.Fast = out+","+second+"->"+first, gradType(x), false // as torchao: exact sums of gradients
	dx = a.apply(g, n.Op, r.operand(g, dy, to, r.per(PerRow)), ofW)
	a.Spec, a.Out = out+","+first+"->"+second, gradType(w)
	if r == RowwiseGWHigh {
		return dx, g.Add(einsumOp, EinsumAttr{a.Spec, a.Out}, dy, x)[0]
	}
	return dx, a.apply(g, n.Op, r.operand(g, dy, to, r.per(PerColumn)), ofX)
}
