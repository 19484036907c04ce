package pass

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/scalar"
)

// fuseWriter writes the graph that a fuser decided on.
type fuseWriter struct {
	*fuser
	rewrite
	done map[*graph.Node]bool
	did  Fusion
}

// need appends n, or the group that it is in, after what it reads.
func (w *fuseWriter) need(n *graph.Node) {
	if w.done[n] {
		return
	}
	g := w.groups[n]
	if g == nil {
		g = &fuseGroup{nodes: []*graph.Node{n}}
	}
	for _, m := range g.nodes {
		w.done[m] = true
	}
	for _, m := range g.nodes {
		for _, v := range m.In {
			w.need(v.Node)
		}
	}
	w.g.In(n.Phase, g.nodes[0].FQN, func() {
		if len(g.nodes) > 1 {
			w.fused(g)
			return
		}
		w.follow(n.Results, w.g.Copy(n, w.now(n.In)))
	})
}

// fused writes a group as one node. Inputs are read in the order in which its nodes do, results written in that of nodes.
func (w *fuseWriter) fused(g *fuseGroup) {
	inside := map[*graph.Node]bool{}
	for _, n := range g.nodes {
		inside[n] = true
	}
	var b scalar.Builder
	var in, out []*graph.Value
	values := map[*graph.Value]scalar.Value{}
	dims := 0
	for _, n := range g.nodes {
		full, kinds, results, _ := op.Scalar(n)
		dims = len(full.Shape)
		args := make([]scalar.Value, len(n.In))
		for i, v := range n.In {
			if _, ok := values[v]; !ok {
				values[v] = b.Input(v.DType, kinds[i])
				in = append(in, v)
			}
			args[i] = values[v]
		}
		for i, x := range n.Op.Scalar(n, &b, args) {
			v := n.Results[i]
			if w.leaves(v, inside) {
				if slices.ContainsFunc(w.readers[v], func(r *graph.Node) bool { return inside[r] }) {
					x = b.Round(x, v.DType)
				}
				b.Output(x, v.DType, results[i])
				out = append(out, v)
			}
			values[v] = x
		}
	}
	p := b.Program()
	w.follow(out, op.Fused(w.g, op.FusedAttr{Program: p, Dims: dims}, w.now(in)...))
	w.did.Nodes += len(g.nodes)
	w.did.Kernels++
	w.did.Kinds[p.Hash()] = FusedKind{p, w.did.Kinds[p.Hash()].Kernels + 1}
}
