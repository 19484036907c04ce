package op

import (
	"math"

	"titan/libtitan/graph"
)

var swigluOp = &graph.Op{
	Name: "swiglu",
	Cut:  cut("b", "s", "f"),
	Rule: rule("bsf,bsf->bsf"),
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		return g.Add(swigluBackwardOp, nil, d[0], n.In[0], n.In[1])
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
