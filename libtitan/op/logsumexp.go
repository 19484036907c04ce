package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Where the vocabulary is cut, the cross-entropy is three ops with a reduction after each of the first two's
// results: the maximum of each row; the sum of exponents and the logit of the label; the loss. Its backward sends
// nothing, since the log-sum-exp is whole by then.

var rowMaxOp = &graph.Op{
	Name:   "row_max",
	Rule:   rule("bsv->bs"),
	Cut:    cut("b", "s", "v"),
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(in[0].Shape[:2]...)
		numRows, vocab := rows(in[0])
		for r := range numRows {
			out.Data[r] = math.Inf(-1)
			for _, x := range in[0].Data[r*vocab : (r+1)*vocab] {
				out.Data[r] = max(out.Data[r], x)
			}
		}
		return []graph.Array{out}
	},
}

var rowSumsOp = &graph.Op{
	Name:   "row_sums",
	Rule:   rule("bsv,bs,bs->bs,bs"),
	Cut:    cut("b", "s", "v"),
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32, dtype.Float32} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		sums, picked := graph.NewArray(in[0].Shape[:2]...), graph.NewArray(in[0].Shape[:2]...)
		numRows, vocab := rows(in[0])
		for r := range numRows {
			row := in[0].Data[r*vocab : (r+1)*vocab]
			for _, x := range row {
				sums.Data[r] += math.Exp(x - in[2].Data[r])
			}
			if label := int(in[1].Data[r]); label != Ignored {
				picked.Data[r] = row[label]
			}
		}
		return []graph.Array{sums, picked}
	},
}

var rowLossOp = &graph.Op{
	Name:   "row_loss",
	Rule:   rule("bs,bs,bs,bs->,bs"),
	Cut:    cut("b", "s"),
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32, dtype.Float32} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		loss, lse := graph.NewArray(), graph.NewArray(in[0].Shape...)
		for r, top := range in[0].Data {
			lse.Data[r] = top + math.Log(in[1].Data[r])
			if int(in[3].Data[r]) != Ignored {
				loss.Data[0] += lse.Data[r] - in[2].Data[r]
			}
		}
		return []graph.Array{loss, lse}
	},
}

// RowMax is the largest logit of each row, [B, S].
func RowMax(g *graph.Graph, logits *graph.Value) *graph.Value { return g.Add(rowMaxOp, nil, logits)[0] }

// RowSums is, for each row, the sum of exp(logit - top) and the label's logit, zero where there is no label.
func RowSums(g *graph.Graph, logits, labels, top *graph.Value) (sums, picked *graph.Value) {
	r := g.Add(rowSumsOp, nil, logits, labels, top)
	return r[0], r[1]
}

// RowLoss is the summed loss and the log-sum-exp of each row.
func RowLoss(g *graph.Graph, top, sums, picked, labels *graph.Value) (loss, lse *graph.Value) {
	r := g.Add(rowLossOp, nil, top, sums, picked, labels)
	return r[0], r[1]
}
