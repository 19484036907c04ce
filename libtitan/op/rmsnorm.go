package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/scalar"
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
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		rstd := b.RStd(b.Sum(in[0], in[0]), n.Attr.(RMSNormAttr).Eps)
		return []scalar.Value{b.Mul(in[0], rstd, in[1]), rstd}
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
	Scalar: func(n *graph.Node, b *scalar.Builder, in []scalar.Value) []scalar.Value {
		dy, x, w, r := in[0], in[1], in[2], in[3]
		mean := b.Mean(b.Mul(r, r, r, b.Sum(dy, x, w)))
		dyr := b.Mul(dy, r)
		return []scalar.Value{b.Sub(b.Mul(dyr, w), b.Mul(x, mean)), b.Mul(dyr, x)}
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
