package pass

import (
	"slices"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Bucket makes one collective of those that move a unit's parameters, and one of those that move its gradients: a unit
// is gathered where the first of its parameters is used, and its gradients are reduced when the last is made. The largest
// magnitudes of all weights that are made float8 before they are gathered are joined in one collective. grads are
// the gradients of params, as Shard left them; unit names the unit of a parameter. It returns the successor of each
// value of g.
func Bucket(g *graph.Graph, params, grads []*graph.Value, unit func(param string) string) (*graph.Graph, func(v *graph.Value) *graph.Value, error) {
	b := &bucketer{rewrite: rewriteOf(g), of: map[*graph.Node]*bucket{}, all: map[moveKind]*bucket{}}
	b.sortGathers(g, unit)
	b.sortReductions(g, params, grads, unit)
	for _, n := range g.Nodes {
		if k := b.of[n]; k != nil && k.last {
			k.missing--
			b.reduce()
			continue
		}
		b.need(n)
	}
	return b.g, b.successor, b.g.Verify()
}

type bucketer struct {
	rewrite
	of    map[*graph.Node]*bucket
	all   map[moveKind]*bucket
	later []*bucket // of gradients, in the order of their first
}

// bucket is moves that become one.
type bucket struct {
	moveKind
	nodes   []*graph.Node
	missing int // how many of its nodes are still to come
}

// moveKind is what moves that become one have in common.
type moveKind struct {
	unit  string
	phase graph.Phase
	op    *graph.Op
	attr  op.MoveAttr
	dtype dtype.DType // where numbers are summed
	last  bool        // it is made at the place of the last of them, not the first
}

// put adds n to the bucket of its unit and kind.
func (b *bucketer) put(n *graph.Node, unit string, last bool) {
	kind := moveKind{unit: unit, phase: n.Phase, op: n.Op, attr: n.Attr.(op.MoveAttr), last: last}
	if reduces(n) {
		kind.dtype = n.In[0].DType
	}
	k := b.all[kind]
	if k == nil {
		k = &bucket{moveKind: kind}
		b.all[kind] = k
		if last {
			b.later = append(b.later, k)
		}
	}
	k.nodes, k.missing = append(k.nodes, n), k.missing+1
	b.of[n] = k
}

// sortGathers finds the gathers of stored parameters, and what their scales need of other ranks.
func (b *bucketer) sortGathers(g *graph.Graph, unit func(param string) string) {
	for _, n := range g.Nodes {
		if n.Op.Name == string(op.AllGather) {
			if p := paramOf(n.In[0]); p != nil {
				b.put(n, unit(p.Name()), false)
			}
		}
		if reduces(n) && perTensor(n.In[0].Node) && paramOf(n.In[0].Node.In[0]) != nil {
			b.put(n, "float8", false)
		}
	}
}

// sortReductions finds the reductions that end in a parameter's gradient and that nothing else reads.
func (b *bucketer) sortReductions(g *graph.Graph, params, grads []*graph.Value, unit func(param string) string) {
	reads := map[*graph.Value]int{}
	for _, v := range grads {
		reads[v]++ // by the optimizer
	}
	for _, n := range g.Nodes {
		for _, v := range n.In {
			reads[v]++
		}
	}
	units := map[*graph.Node]string{}
	for i, v := range grads {
		for ; reads[v] == 1 && reduces(v.Node); v = v.Node.In[0] {
			units[v.Node] = unit(params[i].Name())
		}
	}
	for _, n := range g.Nodes {
		if u, ok := units[n]; ok {
			b.put(n, u, true)
		}
	}
}

func reduces(n *graph.Node) bool {
	return n.Op.Name == string(op.ReduceScatter) || n.Op.Name == string(op.AllReduce)
}

// need appends n, or the whole bucket that it is in, after what it reads.
func (b *bucketer) need(n *graph.Node) {
	if b.made(n) {
		return
	}
	nodes := []*graph.Node{n}
	scope := n.FQN
	if k := b.of[n]; k != nil {
		nodes, scope = k.nodes, k.unit
	}
	var in, old []*graph.Value
	for _, m := range nodes {
		for _, v := range m.In {
			b.need(v.Node)
			in = append(in, b.to[v])
		}
		old = append(old, m.Results...)
	}
	b.g.In(n.Phase, scope, func() { b.follow(old, b.g.Copy(n, in)) })
}

// reduce makes the reductions whose gradients are all there. One may have waited for another.
func (b *bucketer) reduce() {
	for more := true; more; {
		more = false
		for _, k := range b.later {
			if k.missing == 0 && !b.made(k.nodes[0]) && b.ready(k) {
				b.need(k.nodes[0])
				more = true
			}
		}
	}
}

func (b *bucketer) made(n *graph.Node) bool { return b.to[n.Results[0]] != nil }

func (b *bucketer) ready(k *bucket) bool {
	return !slices.ContainsFunc(k.nodes, func(n *graph.Node) bool { return b.to[n.In[0]] == nil })
}
