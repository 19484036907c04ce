package pass

import "titan/libtitan/graph"

// rewrite is a graph in the making, into which the nodes of an old one are copied, changed or not.
type rewrite struct {
	g  *graph.Graph
	to map[*graph.Value]*graph.Value // the successors of the old values
}

func rewriteOf(old *graph.Graph) rewrite {
	return rewrite{old.Renew(), map[*graph.Value]*graph.Value{}}
}

// successor is what became of v, a value of the old graph; nil if it is no longer made.
func (w *rewrite) successor(v *graph.Value) *graph.Value { return w.to[v] }

// now lists the successors of values.
func (w *rewrite) now(old []*graph.Value) []*graph.Value {
	out := make([]*graph.Value, len(old))
	for i, v := range old {
		out[i] = w.to[v]
	}
	return out
}

// follow notes the successors of values, which lie as those did.
func (w *rewrite) follow(old, now []*graph.Value) {
	for i, v := range old {
		now[i].Layout = v.Layout
		w.to[v] = now[i]
	}
}

// dependents finds the nodes for which is holds, and all that read their results, directly or not.
func dependents(g *graph.Graph, is func(n *graph.Node) bool) map[*graph.Node]bool {
	out := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		out[n] = is(n)
		for _, v := range n.In {
			out[n] = out[n] || out[v.Node]
		}
	}
	return out
}

// isInput holds for what differs from one microbatch to the next.
func isInput(n *graph.Node) bool { return n.Op == graph.InputOp }
