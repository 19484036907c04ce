// Package pass holds the rewrites of a graph, one a file. They run in this order, each where it is asked for: [Float8], on
// the forward alone; [Grad], after which forward and backward are one graph of logical values; [Remat]; [Shard], which gives
// every value a layout; [Bucket], [Float8Turn] and [Fuse], on what is laid out. Start with [Grad].
package pass

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Grad appends to g the backward of out, given seed, the gradient of out, and returns the gradients of wrt:
// nil for a value that out does not depend on. Where several gradients meet they are summed by one n-ary add,
// the last reader's first, so that partial sums can meet before they are reduced. wrt may hold values made
// in the forward, such as a pipeline stage's input.
func Grad(g *graph.Graph, out, seed *graph.Value, wrt []*graph.Value) ([]*graph.Value, error) {
	needed := reaching(g, wrt)
	parts := map[*graph.Value][]*graph.Value{out: {seed}}
	sums := map[*graph.Value]*graph.Value{}
	total := func(v *graph.Value) *graph.Value {
		if sums[v] == nil && len(parts[v]) > 0 {
			g.In(graph.Backward, v.Node.FQN, func() { sums[v] = op.Add(g, parts[v]...) })
		}
		return sums[v]
	}
	for i := out.Node.ID; i >= 0; i-- {
		n := g.Nodes[i]
		if n.Op.VJP == nil || !needed[n] {
			continue
		}
		d, live := make([]*graph.Value, len(n.Results)), false
		for k, v := range n.Results {
			d[k] = total(v)
			live = live || d[k] != nil
		}
		if !live {
			continue
		}
		g.In(graph.Backward, n.FQN, func() {
			for k, dv := range n.Op.VJP(g, n, d) {
				if dv != nil {
					parts[n.In[k]] = append(parts[n.In[k]], dv)
				}
			}
		})
	}
	grads := make([]*graph.Value, len(wrt))
	for i, v := range wrt {
		grads[i] = total(v)
	}
	return grads, g.Verify()
}

// reaching finds the nodes through which a gradient flows to one of wrt.
func reaching(g *graph.Graph, wrt []*graph.Value) map[*graph.Node]bool {
	dep := map[*graph.Value]bool{}
	for _, v := range wrt {
		dep[v] = true
	}
	out := map[*graph.Node]bool{}
	for _, n := range g.Nodes {
		for _, v := range n.In {
			out[n] = out[n] || dep[v]
		}
		for _, v := range n.Results {
			dep[v] = dep[v] || out[n]
		}
	}
	return out
}
