package op

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

var embeddingOp = &graph.Op{
	Name:   "embedding",
	Cut:    cut("b", "s", "v"),
	Rule:   rule("bs,vd->bsd"),
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.In[1].DType} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		attr := EmbeddingBackwardAttr{n.In[1].Shape[0], gradType(n.In[1])}
		return []*graph.Value{nil, g.Add(embeddingBackwardOp, attr, d[0], n.In[0])[0]}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(n.Results[0].Shape...)
		_, dim := rows(in[1])
		for i, id := range in[0].Data {
			copy(out.Data[i*dim:(i+1)*dim], in[1].Data[int(id)*dim:])
		}
		return []graph.Array{out}
	},
}

// EmbeddingBackwardAttr is the height of the table and the type of its gradient.
type EmbeddingBackwardAttr struct {
	Vocab int
	Out   dtype.DType
}

var embeddingBackwardOp = &graph.Op{
	Name:   "embedding_backward",
	Cut:    cut("b", "s", "v"),
	CanAdd: true,
	Rule:   rule("bsd,bs->vd"),
	Sizes:  func(n *graph.Node) map[byte]int { return map[byte]int{'v': n.Attr.(EmbeddingBackwardAttr).Vocab} },
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.Attr.(EmbeddingBackwardAttr).Out} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		out := graph.NewArray(n.Results[0].Shape...)
		_, dim := rows(in[0])
		for i, id := range in[1].Data {
			for j, x := range in[0].Data[i*dim : (i+1)*dim] {
				out.Data[int(id)*dim+j] += x
			}
		}
		return []graph.Array{out}
	},
}

// Embedding looks rows of table [V, D] up by ids [B, S].
func Embedding(g *graph.Graph, ids, table *graph.Value) *graph.Value {
	return g.Add(embeddingOp, nil, ids, table)[0]
}
