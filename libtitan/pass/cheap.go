package pass

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/scalar"
)

// Cheap finds the forward nodes whose results the backward had better compute again: they treat elements and rows alike, and
// whatever they read the backward keeps anyway, so that the kernel that reads it there can make them on the way. Where norms
// says no, those that have a weight for each column are not among them: under tensor parallelism their results are gathered.
func Cheap(g *graph.Graph, norms bool) func(n *graph.Node) bool {
	kept, changes := map[*graph.Value]bool{}, map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		changes[n] = n.Op == graph.InputOp
		for _, v := range n.In {
			changes[n] = changes[n] || changes[v.Node]
			kept[v] = kept[v] || n.Phase == graph.Backward
		}
	}
	return func(n *graph.Node) bool {
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
}
