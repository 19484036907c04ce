package op

import "titan/libtitan/graph"

// HeadsAttr says how a last dim of Heads·HeadDim channels and the pair of them are views of each other.
type HeadsAttr struct {
	Heads, HeadDim int
	Merge          bool
}

// The e of [B, S, E] is n·h; cutting e over ranks cuts n.
var headsOp = &graph.Op{
	Name: "heads",
	Cut:  cut("b", "s", "en"),
	View: true,
	Rule: func(n *graph.Node) string {
		if n.Attr.(HeadsAttr).Merge {
			return "bsnh->bse"
		}
		return "bse->bsnh"
	},
	Sizes: func(n *graph.Node) map[byte]int {
		a := n.Attr.(HeadsAttr)
		return map[byte]int{'e': a.Heads * a.HeadDim, 'n': a.Heads, 'h': a.HeadDim}
	},
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		a := n.Attr.(HeadsAttr)
		a.Merge = !a.Merge
		return g.Add(n.Op, a, d[0])
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		return []graph.Array{{Shape: n.Results[0].Shape, Data: in[0].Data}}
	},
}

// SplitHeads views x [B, S, N·H] as [B, S, N, H].
func SplitHeads(g *graph.Graph, x *graph.Value, heads, headDim int) *graph.Value {
	return g.Add(headsOp, HeadsAttr{heads, headDim, false}, x)[0]
}

// MergeHeads views x [B, S, N, H] as [B, S, N·H].
func MergeHeads(g *graph.Graph, x *graph.Value) *graph.Value {
	return g.Add(headsOp, HeadsAttr{x.Shape[2], x.Shape[3], true}, x)[0]
}
