package pass

import (
	"strings"

	"titan/libtitan/graph"
)

// Remat rewrites g so that the backward computes again every forward value that keep does not save, where it is
// first used (activation checkpointing: Chen et al., 2016). It returns the successor of each value of g.
func Remat(g *graph.Graph, keep func(n *graph.Node) bool) (*graph.Graph, func(v *graph.Value) *graph.Value) {
	r := &remat{g: g.Renew(), keep: keep, fwd: map[*graph.Value]*graph.Value{}, again: map[*graph.Value]*graph.Value{}}
	for _, n := range g.Nodes {
		in := make([]*graph.Value, len(n.In))
		for i, v := range n.In {
			in[i] = r.fwd[v]
			if n.Phase == graph.Backward {
				in[i] = r.recompute(v)
			}
		}
		r.copy(n, n.Phase, in, r.fwd)
	}
	return r.g, func(v *graph.Value) *graph.Value { return r.fwd[v] }
}

type remat struct {
	g          *graph.Graph
	keep       func(n *graph.Node) bool
	fwd, again map[*graph.Value]*graph.Value
}

// copy appends n in a phase and notes its results.
func (r *remat) copy(n *graph.Node, p graph.Phase, in []*graph.Value, to map[*graph.Value]*graph.Value) {
	r.g.In(p, n.FQN, func() {
		for i, v := range r.g.Copy(n, in) {
			to[n.Results[i]] = v
		}
	})
}

// recompute gives a forward value to the backward: the one that was saved, or a copy of its node.
func (r *remat) recompute(v *graph.Value) *graph.Value {
	n := v.Node
	if n.Phase == graph.Backward || len(n.In) == 0 || r.keep(n) {
		return r.fwd[v]
	}
	if r.again[v] == nil {
		in := make([]*graph.Value, len(n.In))
		for i, x := range n.In {
			in[i] = r.recompute(x)
		}
		r.copy(n, graph.Backward, in, r.again)
	}
	return r.again[v]
}

// block is the layer that a module belongs to, "layers.3" of "layers.3.attention.wq"; "" outside the layers.
func block(fqn string) string {
	if !strings.HasPrefix(fqn, "layers.") {
		return ""
	}
	parts := strings.SplitN(fqn, ".", 3)
	return parts[0] + "." + parts[1]
}

// Saver decides what Remat keeps of g. A layer is checkpointed if full or op says so, by its name: of a full one
// only what leaves it is saved; of an op one also what selective checkpointing saves, attention and every other
// matrix product from the first on, and the largest magnitudes of what is made float8 (torchtitan's list). Parameters, and
// what depends on them alone, are never computed again, but for weights made float8 by row: those are whole.
func Saver(g *graph.Graph, full, op func(layer string) bool) func(n *graph.Node) bool {
	leaves, fixed, products := map[*graph.Node]bool{}, map[*graph.Node]bool{}, map[string]int{}
	listed := map[*graph.Node]bool{}
	read := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		fixed[n] = n.Op != graph.InputOp && !byRow(n)
		for _, v := range n.In {
			fixed[n] = fixed[n] && fixed[v.Node]
			if n.Phase == graph.Forward {
				read[v.Node] = true
				leaves[v.Node] = leaves[v.Node] || block(v.Node.FQN) != block(n.FQN)
			}
		}
		if n.Phase == graph.Forward {
			switch n.Op.Name {
			case "attention", "amax":
				listed[n] = true
			case "einsum", "float8_product":
				products[block(n.FQN)]++
				listed[n] = products[block(n.FQN)]%2 == 1
			}
		}
	}
	return func(n *graph.Node) bool {
		layer := block(n.FQN)
		if layer == "" || fixed[n] || leaves[n] || !read[n] {
			return true
		}
		return !full(layer) && (!op(layer) || listed[n])
	}
}
