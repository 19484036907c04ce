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

// Float8Operands makes operands, each once.
type Float8Operands struct {
	g    *graph.Graph
	have map[float8Key]float8Operand
}

type float8Key struct {
	value *graph.Value
	to    dtype.DType
	per   Scaling
}

// NewFloat8Operands makes operands in g.
func NewFloat8Operands(g *graph.Graph) *Float8Operands {
	return &Float8Operands{g, map[float8Key]float8Operand{}}
}

func (o *Float8Operands) of(r Float8Recipe, v *graph.Value, to dtype.DType, per Scaling) float8Operand {
	key := float8Key{v, to, per}
	if _, ok := o.have[key]; !ok {
		q, inverse := Float8Cast(o.g, v, Amax(o.g, v, per), Float8CastAttr{To: to, Per: per, Power2: r != Tensorwise})
		o.have[key] = float8Operand{q, inverse, per}
	}
	return o.have[key]
}

// Linear is x·wᵀ by recipe r: x [B, S, K], w [N, K], the result [B, S, N] in x's type. With one scale for all of it a stored
// weight is made float8 where it is stored, from float32; by row it is rounded to w's type, and gathered, before.
func (o *Float8Operands) Linear(r Float8Recipe, x, w *graph.Value) *graph.Value {
	per := r.per(PerRow)
	if per == PerTensor {
		w = uncast(w)
	}
	a := Float8ProductAttr{Spec: "bsk,nk->bsn", Out: x.DType, Recipe: r}
	return a.apply(o.g, float8ProductOp, o.of(r, x, dtype.Float8E4M3FN, per), o.of(r, w, dtype.Float8E4M3FN, per))
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
	ops := NewFloat8Operands(g)
	first, second, out := a.terms()
	x, w := n.In[0].Node.In[0], n.In[2].Node.In[0] // as they were before the cast
	ofX, ofW := float8Operand{n.In[0], n.In[1], a.A}, float8Operand{n.In[2], n.In[3], a.B}
	to := dtype.Float8E5M2
	switch a.Recipe {
	case Rowwise:
		to = dtype.Float8E4M3FN
		ofX, ofW = ops.of(a.Recipe, x, to, PerColumn), ops.of(a.Recipe, w, to, PerColumn)
	case RowwiseGWHigh:
		to = dtype.Float8E4M3FN
		ofW = ops.of(a.Recipe, uncast(w), to, PerTensor)
	}
	a.Spec, a.Out = out+","+second+"->"+first, gradType(x)
	dx = a.apply(g, n.Op, ops.of(a.Recipe, dy, to, a.Recipe.per(PerRow)), ofW)
	toWeight := out + "," + first + "->" + second
	if a.Recipe == RowwiseGWHigh {
		return dx, g.Add(einsumOp, EinsumAttr{toWeight, gradType(w)}, dy, x)[0]
	}
	a.Spec, a.Out = toWeight, gradType(w)
	return dx, a.apply(g, n.Op, ops.of(a.Recipe, dy, to, a.Recipe.per(PerColumn)), ofX)
}
