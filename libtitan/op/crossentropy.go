package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Ignored is the label of a position that is not learned.
const Ignored = -100

// The logits are widened to float32 inside, forward and backward, and are never stored so.
var crossEntropyOp = &graph.Op{
	Name:   "cross_entropy",
	Cut:    cut("b", "s", "v"),
	Rule:   rule("bsv,bs->,bs"),
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32, dtype.Float32} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		return []*graph.Value{g.Add(crossEntropyBackwardOp, nil, n.In[0], n.In[1], n.Results[1], d[0])[0], nil}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		loss, lse := graph.NewArray(), graph.NewArray(in[1].Shape...)
		numRows, vocab := rows(in[0])
		for r := range numRows {
			row := in[0].Data[r*vocab : (r+1)*vocab]
			top, sum := math.Inf(-1), 0.0
			for _, x := range row {
				top = max(top, x)
			}
			for _, x := range row {
				sum += math.Exp(x - top)
			}
			lse.Data[r] = top + math.Log(sum)
			if label := int(in[1].Data[r]); label != Ignored {
				loss.Data[0] += lse.Data[r] - row[label]
			}
		}
		return []graph.Array{loss, lse}
	},
}

// dlogits = dloss·(softmax - onehot), zero where the label is Ignored.
var crossEntropyBackwardOp = &graph.Op{
	Name:    "cross_entropy_backward",
	Cut:     cut("b", "s", "v"),
	Rule:    rule("bsv,bs,bs,->bsv"),
	InPlace: true, // logits are the largest value of many models
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(in[0].Shape...)
		numRows, vocab := rows(in[0])
		for r := range numRows {
			label := int(in[1].Data[r])
			if label == Ignored {
				continue
			}
			for j, x := range in[0].Data[r*vocab : (r+1)*vocab] {
				out.Data[r*vocab+j] = in[3].Data[0] * math.Exp(x-in[2].Data[r])
			}
			out.Data[r*vocab+label] -= in[3].Data[0]
		}
		return []graph.Array{out}
	},
}

// CrossEntropy is the sum, over positions with a label, of logsumexp(logits) - logits[label]: logits [B, S, V]
// of any float type, labels [B, S] int32 with Ignored where there is none, the loss a float32 scalar.
func CrossEntropy(g *graph.Graph, logits, labels *graph.Value) *graph.Value {
	return g.Add(crossEntropyOp, nil, logits, labels)[0]
}
