package pass

import (
	"strings"

	"titan/libtitan/graph"
)

// Remat rewrites g so that the backward computes again every forward value that keep does not save, where it is
// first used (activation checkpointing: Chen et al., 2016). It returns the successor of each value of g.
func Remat(g *graph.Graph, keep func(n *graph.Node) bool) (*graph.Graph, func(v *graph.Value) *graph.Value) {
	r := &remat{rewriteOf(g), keep, map[*graph.Value]*graph.Value{}}
	for _, n := range g.Nodes {
		in := r.now(n.In)
		if n.Phase == graph.Backward {
			in = r.recompute(n.In)
		}
		r.g.In(n.Phase, n.FQN, func() { r.follow(n.Results, r.g.Copy(n, in)) })
	}
	return r.g, r.successor
}

type remat struct {
	rewrite
	keep  func(n *graph.Node) bool
	again map[*graph.Value]*graph.Value // forward values, computed again
}

// recompute gives values to the backward: what was saved, or copies of their nodes.
func (r *remat) recompute(old []*graph.Value) []*graph.Value {
	out := r.now(old)
	for i, v := range old {
		n := v.Node
		if n.Phase == graph.Backward || len(n.In) == 0 || r.keep(n) {
			continue
		}
		if r.again[v] == nil {
			in := r.recompute(n.In)
			r.g.In(graph.Backward, n.FQN, func() {
				for k, c := range r.g.Copy(n, in) {
					r.again[n.Results[k]] = c
				}
			})
		}
		out[i] = r.again[v]
	}
	return out
}

// Saver decides what Remat keeps of g. A layer is checkpointed if full or op says so, by its name: of a full one
// only what leaves it is saved; of an op one also what selective checkpointing saves. Parameters, and what depends on
// them alone, are never computed again, but for weights made float8 by row: those are whole.
func Saver(g *graph.Graph, full, op func(layer string) bool) func(n *graph.Node) bool {
	inside, listed := insideLayers(g), selected(g)
	made := dependents(g, func(n *graph.Node) bool { return isInput(n) || byRow(n) })
	return func(n *graph.Node) bool {
		layer := layerOf(n)
		switch {
		case layer == "" || !inside[n] || !made[n]:
			return true
		case full(layer):
			return false
		}
		return !op(layer) || listed[n]
	}
}

// insideLayers finds the nodes whose results the forward reads in their own layer and nowhere else.
func insideLayers(g *graph.Graph) map[*graph.Node]bool {
	inside := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		if n.Phase != graph.Forward {
			continue
		}
		for _, v := range n.In {
			before, read := inside[v.Node]
			inside[v.Node] = layerOf(v.Node) == layerOf(n) && (before || !read)
		}
	}
	return inside
}

// selected finds what selective checkpointing saves: attention and every other matrix product of a layer from the
// first on, and the largest magnitudes of what is made float8 (torchtitan's list).
func selected(g *graph.Graph) map[*graph.Node]bool {
	list, products := map[*graph.Node]bool{}, map[string]int{}
	for _, n := range g.Nodes {
		if n.Phase != graph.Forward {
			continue
		}
		switch n.Op.Name {
		case "attention", "amax":
			list[n] = true
		case "einsum", "float8_product":
			layer := layerOf(n)
			list[n] = products[layer]%2 == 0
			products[layer]++
		}
	}
	return list
}

// layerOf is the layer that a node belongs to, "layers.3" of "layers.3.attention.wq"; "" outside the layers.
func layerOf(n *graph.Node) string {
	parts := strings.SplitN(n.FQN, ".", 3)
	if len(parts) < 2 || parts[0] != "layers" {
		return ""
	}
	return parts[0] + "." + parts[1]
}
