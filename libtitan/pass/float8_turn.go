package pass

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// Float8Turn rewrites g, laid out, so that both operands of every float8 product have the dims that it sums over last, as the
// tensor cores of GPUs read them: the products of gradients read columns of what the forward reads rows of. A cast whose result such
// a product reads writes it that way too, or only that way. What was gathered is turned where it is first read so, for each
// microbatch; with late, a weight's turned copy is cast there too, which reads the weight twice, so that no copy for the
// backward waits through the forward. It returns the successor of each value of g that a cast still makes.
func Float8Turn(g *graph.Graph, late bool) (*graph.Graph, func(v *graph.Value) *graph.Value) {
	t := &turner{rewrite: rewriteOf(g), late: late, turned: map[*graph.Value]*graph.Value{}}
	t.sortReaders(g)
	for _, n := range g.Nodes {
		t.g.In(n.Phase, n.FQN, func() { t.node(n) })
	}
	return t.g, t.successor
}

type turner struct {
	rewrite
	late           bool
	turned         map[*graph.Value]*graph.Value // the turned copies of old values
	asIs, asTurned map[*graph.Value]bool         // old values that somebody reads so
}

// operands are the places, among a product's inputs, of the numbers.
var operands = [2]int{0, 2}

func (t *turner) sortReaders(g *graph.Graph) {
	t.asIs, t.asTurned = map[*graph.Value]bool{}, map[*graph.Value]bool{}
	for _, n := range g.Nodes {
		a, product := n.Attr.(op.Float8ProductAttr)
		for i, v := range n.In {
			if product && i == operands[i/2] && !a.TermsLast(i > 0) {
				t.asTurned[v] = true
			} else {
				t.asIs[v] = true
			}
		}
	}
}

func (t *turner) node(n *graph.Node) {
	in := t.now(n.In)
	switch a := n.Attr.(type) {
	case op.Float8CastAttr:
		t.cast(n, a, in)
		return
	case op.Float8ProductAttr:
		a.TurnedA, a.TurnedB = t.operand(n, in, 0, a), t.operand(n, in, 1, a)
		t.follow(n.Results, t.g.Add(n.Op, a, in...))
		return
	}
	t.follow(n.Results, t.g.Copy(n, in))
}

// cast makes the copies that are read.
func (t *turner) cast(n *graph.Node, a op.Float8CastAttr, in []*graph.Value) {
	q := n.Results[0]
	if t.asTurned[q] && !(t.asIs[q] && t.castLate(q)) {
		if a.Copies = op.Turned; t.asIs[q] {
			a.Copies = op.Both
		}
	}
	now := t.g.Add(n.Op, a, in...)
	t.follow(n.Results, now)
	if a.Copies == op.Straight {
		return
	}
	t.turned[q] = now[0]
	if a.Copies == op.Both {
		t.turned[q] = now[2]
	} else {
		delete(t.to, q)
	}
	t.turned[q].Layout = turnedLayout(q.Layout)
}

// castLate reports whether q, a weight, is cast again where its turned copy is read.
func (t *turner) castLate(q *graph.Value) bool {
	return t.late && q.Node.Op.Name == "float8_cast" && paramOf(q) != nil
}

// operand gives a product, in in, its first or second operand as it reads it, and tells if that is turned.
func (t *turner) operand(n *graph.Node, in []*graph.Value, which int, a op.Float8ProductAttr) bool {
	if a.TermsLast(which > 0) {
		return false
	}
	i := operands[which]
	v := n.In[i]
	if t.turned[v] == nil {
		t.turned[v] = t.turn(v)
		t.turned[v].Layout = turnedLayout(v.Layout)
	}
	in[i] = t.turned[v]
	return true
}

// turn makes the turned copy of a value that has none.
func (t *turner) turn(v *graph.Value) *graph.Value {
	if !t.castLate(v) {
		return op.Float8Turn(t.g, op.TurnAttr{Again: true}, t.to[v])
	}
	a := v.Node.Attr.(op.Float8CastAttr)
	a.Copies, a.Again = op.Turned, true
	now := t.g.Add(v.Node.Op, a, t.to[v.Node.In[0]], t.to[v.Node.In[1]])
	now[1].Layout = v.Node.Results[1].Layout
	return now[0]
}

// turnedLayout is l of a tensor whose last dim is put first.
func turnedLayout(l placement.Layout) placement.Layout {
	last := len(l.Dims) - 1
	if last < 0 {
		return l
	}
	return placement.Layout{Partial: l.Partial, Dims: append(l.Dims[last:last+1:last+1], l.Dims[:last]...)}
}
