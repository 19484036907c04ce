package pass

import (
	"fmt"
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
	"titan/libtitan/scalar"
)

// maxFusedValues is how many whole values one kernel reads and writes at most: each takes registers.
const maxFusedValues = 10

// Fusion is what Fuse did.
type Fusion struct {
	Nodes   int                  // that are in kernels with others
	Kernels int                  // that they became
	Kinds   map[string]FusedKind // the programs that kernels run, by their hash
}

// FusedKind is a program and how many kernels run it.
type FusedKind struct {
	Program *scalar.Program
	Kernels int
}

// Add counts what another did too.
func (f *Fusion) Add(o Fusion) {
	f.Nodes, f.Kernels = f.Nodes+o.Nodes, f.Kernels+o.Kernels
	for hash, k := range o.Kinds {
		f.Kinds[hash] = FusedKind{k.Program, f.Kinds[hash].Kernels + k.Kernels}
	}
}

func (f Fusion) String() string {
	return fmt.Sprintf("%d nodes in %d kernels of %d kinds", f.Nodes, f.Kernels, len(f.Kinds))
}

// Fuse makes one node of ops that treat elements and rows alike, where that saves reading or writing a value: an op and
// those that read its result, and ops of a module that read the same. What others read of a group, and keep, is written;
// the rest is never stored. A sum goes with the norm that reads it rather than into the product before it, though that would move
// fewer bytes: on an H200 a product that adds 64 MiB takes 36 to 62 us longer, the sum alone 49, a sum and a norm together 12 to 18 us
// less than apart.
// It runs last, on a graph that is laid out, and returns the successor of each value that is still there.
//
// A value that is stored as bfloat16 is rounded before the group goes on with it, so that all its readers see the same; one
// that is not stored is not rounded. In float32 the arithmetic is that of the separate ops.
func Fuse(g *graph.Graph, keep ...*graph.Value) (*graph.Graph, func(v *graph.Value) *graph.Value, Fusion, error) {
	f := newFuser(g, keep)
	f.findGroups()
	out := &fuseWriter{fuser: f, rewrite: rewriteOf(g), done: map[*graph.Node]bool{}, did: Fusion{Kinds: map[string]FusedKind{}}}
	for _, n := range g.Nodes {
		out.need(n)
	}
	return out.g, out.successor, out.did, out.g.Verify()
}

// fuser decides which nodes go together.
type fuser struct {
	nodes   []*graph.Node
	readers map[*graph.Value][]*graph.Node
	kept    map[*graph.Value]bool
	groups  map[*graph.Node]*fuseGroup // of those that can be fused
}

// fuseGroup is nodes that become one, in their order.
type fuseGroup struct {
	nodes []*graph.Node
	space string // phase, shape and cuts of its whole values
}

func newFuser(g *graph.Graph, keep []*graph.Value) *fuser {
	f := &fuser{nodes: g.Nodes, readers: map[*graph.Value][]*graph.Node{}, kept: map[*graph.Value]bool{}, groups: map[*graph.Node]*fuseGroup{}}
	for _, v := range keep {
		f.kept[v] = true
	}
	changes := dependents(g, isInput)
	for _, n := range g.Nodes {
		for _, v := range n.In {
			if r := f.readers[v]; len(r) == 0 || r[len(r)-1] != n {
				f.readers[v] = append(r, n)
			}
		}
		if full, _, _, ok := op.Scalar(n); ok && changes[n] {
			cuts := placement.Layout{Dims: full.Layout.Dims}
			f.groups[n] = &fuseGroup{nodes: []*graph.Node{n}, space: fmt.Sprint(n.Phase, full.Shape, cuts)}
		}
	}
	return f
}

// findGroups joins each node with those before it.
func (f *fuser) findGroups() {
	for _, n := range f.nodes {
		if f.groups[n] == nil {
			continue
		}
		for _, v := range n.In {
			f.join(n, v.Node)
		}
		for _, v := range n.In {
			for _, r := range f.readers[v] {
				if r.ID < n.ID && r.FQN == n.FQN {
					f.join(n, r)
				}
			}
		}
	}
}

// join merges the groups of two nodes if they may be one kernel.
func (f *fuser) join(n, with *graph.Node) {
	a, b := f.groups[n], f.groups[with]
	if a == b || !f.legal(a, b) {
		return
	}
	a.nodes = append(a.nodes, b.nodes...)
	slices.SortFunc(a.nodes, func(x, y *graph.Node) int { return x.ID - y.ID })
	for _, m := range b.nodes {
		f.groups[m] = a
	}
}

// legal reports whether two groups may become one: they are over the same elements, nothing outside stands between
// them, no member reads a sum over all rows, and there are registers for all.
func (f *fuser) legal(a, b *fuseGroup) bool {
	if a == nil || b == nil || a.space != b.space {
		return false
	}
	in := map[*graph.Node]bool{}
	for _, n := range append(slices.Clone(a.nodes), b.nodes...) {
		in[n] = true
	}
	whole := map[*graph.Value]bool{}
	for n := range in {
		_, kinds, results, _ := op.Scalar(n)
		for i, v := range n.In {
			if in[v.Node] && kinds[i] == scalar.Col {
				return false
			}
			whole[v] = whole[v] || kinds[i] == scalar.Full && !in[v.Node]
		}
		for i, v := range n.Results {
			whole[v] = whole[v] || results[i] == scalar.Full && f.leaves(v, in)
		}
	}
	count := 0
	for _, w := range whole {
		if w {
			count++
		}
	}
	return count <= maxFusedValues && !f.returns(in)
}

// leaves reports whether something outside in reads v.
func (f *fuser) leaves(v *graph.Value, in map[*graph.Node]bool) bool {
	return f.kept[v] || slices.ContainsFunc(f.readers[v], func(r *graph.Node) bool { return !in[r] })
}

// returns reports whether a path leaves in and comes back: then no order of nodes has all of in as one. Groups are left
// and entered as a whole.
func (f *fuser) returns(in map[*graph.Node]bool) bool {
	last := 0
	for n := range in {
		last = max(last, n.ID)
	}
	seen := map[*graph.Node]bool{}
	var back func(n *graph.Node) bool
	back = func(n *graph.Node) bool {
		if in[n] || seen[n] {
			return in[n]
		}
		seen[n] = true
		together := []*graph.Node{n}
		if g := f.groups[n]; g != nil {
			together = g.nodes
		}
		if len(together) == 1 && n.ID > last {
			return false
		}
		return slices.ContainsFunc(together, func(m *graph.Node) bool { return f.anyReader(m, back) })
	}
	for n := range in {
		if f.anyReader(n, func(r *graph.Node) bool { return !in[r] && back(r) }) {
			return true
		}
	}
	return false
}

// anyReader reports whether is holds for one of those that read n's results.
func (f *fuser) anyReader(n *graph.Node, is func(r *graph.Node) bool) bool {
	return slices.ContainsFunc(n.Results, func(v *graph.Value) bool { return slices.ContainsFunc(f.readers[v], is) })
}
