package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// RMSNormAttr is what is added to the mean square.
type RMSNormAttr struct{ Eps float64 }

var rmsNormOp = &graph.Op{
	Name:   "rmsnorm",
	Cut:    cut("b", "s"),
	Rule:   rule("bsd,d->bsd,bs"),
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.In[0].DType, dtype.Float32} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		return g.Add(rmsNormBackwardOp, RMSNormBackwardAttr{gradType(n.In[1])}, d[0], n.In[0], n.In[1], n.Results[1])
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		x, w := in[0], in[1].Data
		numRows, dim := rows(x)
		y, rstd := graph.NewArray(x.Shape...), graph.NewArray(x.Shape[:2]...)
		for r := range numRows {
			var ss float64
			for _, v := range x.Data[r*dim : (r+1)*dim] {
				ss += v * v
			}
			rstd.Data[r] = 1 / math.Sqrt(ss/float64(dim)+n.Attr.(RMSNormAttr).Eps)
			for j, v := range x.Data[r*dim : (r+1)*dim] {
				y.Data[r*dim+j] = v * rstd.Data[r] * w[j]
			}
		}
		return []graph.Array{y, rstd}
	},
}

// RMSNormBackwardAttr is the type of the weight's gradient.
type RMSNormBackwardAttr struct{ WeightGrad dtype.DType }

// With x̂ = x·rstd: dx = rstd·(w·dy - x̂·mean(w·dy·x̂)), dw = Σ dy·x̂ over rows.
var rmsNormBackwardOp = &graph.Op{
	Name:   "rmsnorm_backward",
	Cut:    cut("b", "s"),
	CanAdd: true,
	Rule:   rule("bsd,bsd,d,bs->bsd,d"),
	DTypes: func(n *graph.Node) []dtype.DType {
		return []dtype.DType{n.In[1].DType, n.Attr.(RMSNormBackwardAttr).WeightGrad}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		dy, x, w, rstd := in[0].Data, in[1].Data, in[2].Data, in[3].Data
		numRows, dim := rows(in[1])
		dx, dw := graph.NewArray(in[1].Shape...), graph.NewArray(in[2].Shape...)
		for r := range numRows {
			var dot float64
			for j := range dim {
				i := r*dim + j
				dw.Data[j] += dy[i] * x[i] * rstd[r]
				dot += w[j] * dy[i] * x[i] * rstd[r]
			}
			for j := range dim {
				i := r*dim + j
				dx.Data[i] = rstd[r] * (w[j]*dy[i] - x[i]*rstd[r]*dot/float64(dim))
			}
		}
		return []graph.Array{dx, dw}
	},
}

// RMSNorm is x·w/√(mean(x²)+eps) over the last dim of x [B, S, D] (Zhang and Sennrich, 2019).
func RMSNorm(g *graph.Graph, x, w *graph.Value, eps float64) *graph.Value {
	return g.Add(rmsNormOp, RMSNormAttr{eps}, x, w)[0]
}
