package op

import (
	"math"

	"titan/libtitan/graph"
	"titan/libtitan/scalar"
)

var swigluOp = &graph.Op{
	Name: "swiglu",
	Cut:  cut("b", "s", "f"),
	Rule: rule("bsf,bsf->bsf"),
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		return g.Add(swigluBackwardOp, nil, d[0], n.In[0], n.In[1])
	},
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		return []scalar.Value{b.Mul(in[0], b.Sigmoid(in[0]), in[1])}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(in[0].Shape...)
		for i, a := range in[0].Data {
			out.Data[i] = a / (1 + math.Exp(-a)) * in[1].Data[i]
		}
		return []graph.Array{out}
	},
}

// With σ the logistic function: da = dy·b·σ(a)(1 + a(1-σ(a))), db = dy·a·σ(a).
var swigluBackwardOp = &graph.Op{
	Name: "swiglu_backward",
	Cut:  cut("b", "s", "f"),
	Rule: rule("bsf,bsf,bsf->bsf,bsf"),
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		dy, x, s, one := in[0], in[1], b.Sigmoid(in[1]), b.Const(1)
		return []scalar.Value{b.Mul(dy, in[2], s, b.Add(one, b.Mul(x, b.Sub(one, s)))), b.Mul(dy, x, s)}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		da, db := graph.NewArray(in[0].Shape...), graph.NewArray(in[0].Shape...)
		for i, dy := range in[0].Data {
			a := in[1].Data[i]
			s := 1 / (1 + math.Exp(-a))
			da.Data[i] = dy * in[2].Data[i] * s * (1 + a*(1-s))
			db.Data[i] = dy * a * s
		}
		return []graph.Array{da, db}
	},
}

// SwiGLU is silu(gate)·up (Shazeer, 2020).
func SwiGLU(g *graph.Graph, gate, up *graph.Value) *graph.Value {
	return g.Add(swigluOp, nil, gate, up)[0]
}
