package pass

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// Linear is a linear layer of a graph: rows times a stored weight.
type Linear struct {
	FQN    string
	Weight *graph.Value // the parameter, [out, in]
}

// Float8 rewrites the forward g so that the linear layers that convert chooses multiply in float8 by recipe r. It
// runs before Grad, which makes their gradients' products float8 too. It returns the successor of each value of g that out
// depends on, and of each parameter and input.
func Float8(g *graph.Graph, r op.Float8Recipe, convert func(l Linear) bool, out *graph.Value) (*graph.Graph, func(v *graph.Value) *graph.Value) {
	w := rewriteOf(g)
	for _, n := range g.Nodes {
		in := w.now(n.In)
		w.g.In(n.Phase, n.FQN, func() {
			if l, ok := linear(n); ok && convert(l) {
				w.to[n.Results[0]] = op.Float8Linear(w.g, r, in[0], in[1])
				return
			}
			w.follow(n.Results, w.g.Copy(n, in))
		})
	}
	Prune(w.g, w.to[out]) // weights that are no longer cast to what is computed in
	return w.g, w.successor
}

// Linears lists the linear layers of g.
func Linears(g *graph.Graph) (out []Linear) {
	for _, n := range g.Nodes {
		if l, ok := linear(n); ok {
			out = append(out, l)
		}
	}
	return out
}

func linear(n *graph.Node) (l Linear, ok bool) {
	a, ok := n.Attr.(op.EinsumAttr)
	if !ok || a.Spec != "bsk,nk->bsn" {
		return l, false
	}
	l = Linear{n.FQN, paramOf(n.In[1])}
	return l, l.Weight != nil
}
