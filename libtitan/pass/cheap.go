package pass

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/scalar"
)

// Cheap finds the forward nodes whose results the backward can compute again at little cost: they treat elements and rows
// alike, and whatever they read the backward keeps anyway, so that a fused kernel that reads it there makes them on the way;
// and what is made float8 of such results. Where norms says no, those that have a weight for each column are not among
// them: under tensor parallelism their results are gathered.
func Cheap(g *graph.Graph, norms bool) func(n *graph.Node) bool {
	kept, changes := map[*graph.Value]bool{}, dependents(g, isInput)
	for _, n := range g.Nodes {
		for _, v := range n.In {
			kept[v] = kept[v] || n.Phase == graph.Backward
		}
	}
	var cheap func(n *graph.Node) bool
	cheap = func(n *graph.Node) bool {
		if a, ok := n.Attr.(op.Float8CastAttr); ok && a.Per == op.PerTensor && n.Phase == graph.Forward {
			return cheap(n.In[0].Node) // its largest magnitude is kept
		}
		_, in, _, ok := op.Scalar(n)
		if !ok || !changes[n] || n.Phase != graph.Forward || !norms && slices.Contains(in, scalar.Col) {
			return false
		}
		for i, v := range n.In {
			if in[i] == scalar.Full && !kept[v] {
				return false
			}
		}
		return true
	}
	return cheap
}
