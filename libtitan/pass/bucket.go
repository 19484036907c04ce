package pass

import (
	"fmt"

	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Bucket makes one collective of those that move a unit's parameters, and one of those that move its gradients: a unit
// is gathered where the first of its parameters is used, and its gradients are reduced when the last is made. The largest
// magnitudes of all weights that are made float8 before they are gathered are joined in one collective. grads are
// the gradients of params, as Shard left them; unit names the unit of a parameter. It returns the successor of each
// value of g.
func Bucket(g *graph.Graph, params, grads []*graph.Value, unit func(param string) string) (*graph.Graph, func(v *graph.Value) *graph.Value, error) {
	b := &bucketer{g: g.Renew(), to: map[*graph.Value]*graph.Value{}, of: map[*graph.Node]*bucket{}, all: map[string]*bucket{}}
	b.sortGathers(g, unit)
	b.sortReductions(g, params, grads, unit)
	for _, n := range g.Nodes {
		switch k := b.of[n]; {
		case k == nil || !k.last:
			b.need(n)
		default:
			k.missing--
			b.flush()
		}
	}
	return b.g, func(v *graph.Value) *graph.Value { return b.to[v] }, b.g.Verify()
}

type bucketer struct {
	g     *graph.Graph
	to    map[*graph.Value]*graph.Value
	of    map[*graph.Node]*bucket
	all   map[string]*bucket
	later []*bucket // of gradients, in the order of their first
}

// bucket is moves that become one.
type bucket struct {
	unit    string
	nodes   []*graph.Node
	last    bool // made at the place of the last of them, not the first
	missing int  // of a bucket made last: how many of its nodes are still to come
}

// put adds n to the bucket of its unit, phase, kind, axes and, where numbers are summed, element type.
func (b *bucketer) put(n *graph.Node, unit string, last bool) {
	key := fmt.Sprint(unit, n.Phase, n.Op.Name, n.Attr, n.Attr.(op.MoveAttr).Again, last)
	if reduces(n) {
		key += n.In[0].DType.String()
	}
	k := b.all[key]
	if k == nil {
		k = &bucket{unit: unit, last: last}
		b.all[key] = k
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
	for _, n := range g.Nodes {
		for _, v := range n.In {
			reads[v]++
		}
	}
	units := map[*graph.Node]string{}
	for i, v := range grads {
		for most := 0; reads[v] == most && reduces(v.Node); most = 1 {
			units[v.Node] = unit(params[i].Name())
			v = v.Node.In[0]
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
	if b.to[n.Results[0]] != nil {
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
	b.g.In(n.Phase, scope, func() {
		for i, v := range b.g.Copy(n, in) {
			v.Layout = old[i].Layout
			b.to[old[i]] = v
		}
	})
}

// flush makes the reductions whose gradients are all there.
func (b *bucketer) flush() {
	for i := 0; i < len(b.later); i++ {
		if k := b.later[i]; k.missing == 0 && b.ready(k) {
			b.need(k.nodes[0])
			b.later = append(b.later[:i:i], b.later[i+1:]...)
			i = -1 // another may have waited for this one
		}
	}
}

func (b *bucketer) ready(k *bucket) bool {
	for _, n := range k.nodes {
		if b.to[n.In[0]] == nil {
			return false
		}
	}
	return true
}
