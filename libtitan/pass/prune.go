package pass

import "titan/libtitan/graph"

// Prune drops the nodes that none of keep depends on, such as gradients that nobody asked for. Parameters and
// inputs stay.
func Prune(g *graph.Graph, keep ...*graph.Value) {
	live := map[*graph.Node]bool{}
	for _, v := range keep {
		live[v.Node] = true
	}
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		n := g.Nodes[i]
		if len(n.In) == 0 && (n.Op == graph.ParamOp || n.Op == graph.InputOp) {
			live[n] = true
		}
		if live[n] {
			for _, v := range n.In {
				live[v.Node] = true
			}
		}
	}
	kept := g.Nodes[:0]
	for _, n := range g.Nodes {
		if live[n] {
			n.ID = len(kept)
			kept = append(kept, n)
		}
	}
	g.Nodes = kept
}
