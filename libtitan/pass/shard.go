package pass

import (
	"fmt"
	"slices"
	"strings"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// Spread says where the values that come from outside a graph lie, and how parameters are used.
type Spread struct {
	Mesh placement.Mesh
	// Param gives how a parameter is stored, and how it lies where it is computed with: the same but for the
	// cuts that are gathered first.
	Param func(fqn string, shape []int) (stored, used placement.Layout)
	// Value gives the layout of an input, or of what the embedding makes.
	Value func(name string, shape []int) placement.Layout
	// Ring: under cp, keys and values go round the ranks instead of being gathered.
	Ring bool
	// WholeLogits: the loss sees the whole vocabulary on every rank.
	WholeLogits bool
	// Unit names the parameters that are gathered together.
	Unit func(param string) string
	// Kept is for how long what was gathered of a unit is.
	Kept func(unit string) Kept
}

// Kept is for how long gathered parameters are kept.
type Kept uint8

// The times that gathered parameters are kept.
const (
	ForPhase      Kept = iota // gathered for the forward, and again for the backward
	ForMicrobatch             // from the forward to the backward
	ForStep                   // for all microbatches
)

// Out is a value of a graph that must lie in a certain way.
type Out struct {
	Value  *graph.Value
	Param  string            // the parameter whose gradient it is, and as which it is stored; "": none
	Layout *placement.Layout // else how it must lie
}

// Shard rewrites g so that every rank computes its part: each value gets a layout, and moves are inserted where
// layouts must meet. It returns the successor of each value of g.
//
// There is no search. Axis by axis, an op is cut along the letter by which its inputs are cut already. Where they
// disagree, a parameter is never moved; a parameter's gradient is made where the parameter lies; else the letter
// that moves fewer bytes wins, and a tie is an error.
func Shard(g *graph.Graph, s Spread, outs []Out) (ng *graph.Graph, to func(v *graph.Value) *graph.Value, err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *graph.Error:
			ng, to, err = nil, nil, r
		default:
			panic(r)
		}
	}()
	w := &sharder{Spread: s, rewrite: rewriteOf(g), moved: map[string]*graph.Value{}, grads: map[*graph.Value]string{}, kept: map[*graph.Value]*graph.Value{}}
	for _, o := range outs {
		if o.Param != "" {
			w.grads[o.Value] = o.Param
		}
	}
	for _, n := range g.Nodes {
		w.g.In(n.Phase, n.FQN, func() {
			w.node(n)
			w.storeGrads(n)
		})
	}
	for _, o := range outs {
		if o.Param != "" {
			w.to[o.Value] = w.kept[o.Value]
			continue
		}
		w.g.In(o.Value.Node.Phase, o.Value.Node.FQN, func() { w.to[o.Value] = w.move(w.to[o.Value], *o.Layout) })
	}
	return w.g, w.successor, w.g.Verify()
}

type sharder struct {
	Spread
	rewrite
	moved map[string]*graph.Value       // moves that were made already
	grads map[*graph.Value]string       // old gradients, their parameters
	kept  map[*graph.Value]*graph.Value // and where they are stored
}

// node copies n with its inputs where it needs them.
func (w *sharder) node(n *graph.Node) {
	if n.Op == graph.ParamOp || n.Op == graph.InputOp {
		w.source(n)
		return
	}
	in := w.now(n.In)
	if inPlace(n) && w.isStored(in[0]) {
		w.add(n, in, func(i int) placement.Layout { return placeOf(i, in[0], n) })
		return
	}
	in, cut := w.cut(n, in)
	if s := splits[n.Op.Name]; s != nil {
		if axes := cutBy(cut, s.letter); axes != 0 {
			s.apply(w, n, in, axes)
			return
		}
	}
	w.wish(n, w.add(n, in, func(i int) placement.Layout { return w.layout(n, i, cut) }))
}

// cut decides by which letter n is cut along each axis, and moves its inputs there.
func (w *sharder) cut(n *graph.Node, in []*graph.Value) ([]*graph.Value, map[placement.Axes]string) {
	for i, v := range in {
		in[i] = w.gather(v)
	}
	cut := map[placement.Axes]string{}
	for _, axis := range slices.Backward(w.Mesh.Live().Each()) { // what cuts last is gathered first
		in, cut[axis] = w.axis(n, in, axis)
	}
	return in, cut
}

// add makes n from inputs that lie as it needs them; its results lie as layout says.
func (w *sharder) add(n *graph.Node, in []*graph.Value, layout func(i int) placement.Layout) []*graph.Value {
	results := w.g.Add(n.Op, w.balanced(n.Attr), in...)
	for i, r := range results {
		r.Layout = layout(i)
		switch {
		case n.Op.Name == "amax":
			r = w.largest(in[0], r, r.Layout)
		case n.Op.Name == "float8_cast" && i == 1:
			r.Layout = in[1].Layout
		}
		w.to[n.Results[i]] = r
	}
	return results
}

// balanced tells an op that depends on positions that they come in head-tail order.
func (w *sharder) balanced(attr any) any {
	pieces := 2 * w.Mesh.Size(placement.CP)
	if pieces == 2 {
		return attr
	}
	switch a := attr.(type) {
	case op.RopeTableAttr:
		a.Pieces = pieces
		return a
	case op.AttentionAttr:
		a.Pieces, a.Ring = pieces, w.Ring
		return a
	}
	return attr
}

// goesRound reports whether input or result i of n is one of attention's keys and values, or their gradients, that
// stay cut along axis.
func (w *sharder) goesRound(n *graph.Node, term string, axis placement.Axes) bool {
	_, ok := n.Attr.(op.AttentionAttr)
	return ok && w.Ring && axis == placement.CP && strings.HasPrefix(term, "bt")
}

// wish moves what the embedding makes to where the hidden state lies, and the gradients of attention's inputs to where
// those lay before they were gathered.
func (w *sharder) wish(n *graph.Node, results []*graph.Value) {
	switch n.Op.Name {
	case "embedding":
		w.to[n.Results[0]] = w.move(results[0], w.Value(n.FQN, n.Results[0].Shape))
	case "attention_backward":
		for i, input := range n.In[1:4] {
			w.to[n.Results[i]] = w.move(results[i], w.to[input].Layout)
		}
	}
}

func (w *sharder) source(n *graph.Node) {
	v := n.Results[0]
	r := w.g.Copy(n, nil)[0]
	if n.Op == graph.ParamOp {
		r.Layout, _ = w.Param(v.Name(), v.Shape)
	} else {
		r.Layout = w.Value(v.Name(), v.Shape)
	}
	w.to[v] = r
}

// isStored reports whether v is a parameter, or one cast, as it is stored.
func (w *sharder) isStored(v *graph.Value) bool {
	return v.Node.Op == graph.ParamOp || inPlace(v.Node) && w.isStored(v.Node.In[0])
}

// paramOf is the parameter that v is, or was cast or gathered from, or that v scales; nil if it is none.
func paramOf(v *graph.Value) *graph.Value {
	for {
		switch v.Node.Op.Name {
		case "param":
			return v
		case "cast", "float8_cast", string(op.AllGather):
			v = v.Node.In[0]
		default:
			return nil
		}
	}
}

// gather gives a stored parameter as it is used.
func (w *sharder) gather(v *graph.Value) *graph.Value {
	if !w.isStored(v) {
		return v
	}
	p := paramOf(v)
	_, used := w.Param(p.Name(), p.Shape)
	for d := range v.Layout.Dims {
		for len(v.Layout.Dims[d]) > len(used.Dims[d]) {
			cuts := v.Layout.Dims[d]
			key, kept := fmt.Sprintf("gather %d", v.ID), w.Kept(w.Unit(p.Name()))
			if kept == ForPhase {
				key += w.g.Phase().String()
			}
			v = w.once(key, op.AllGather, op.MoveAttr{Axes: cuts[len(cuts)-1], Dim: -1, From: d, Again: kept != ForStep}, v, v.Layout.Uncut(d))
		}
	}
	return v
}

// storeGrads stores the gradients among n's results as soon as they are made, so that no whole one waits.
func (w *sharder) storeGrads(n *graph.Node) {
	for _, v := range n.Results {
		if name, ok := w.grads[v]; ok {
			stored, _ := w.Param(name, v.Shape)
			w.kept[v] = w.store(w.to[v], stored)
		}
	}
}

func (w *sharder) fail(n *graph.Node, format string, args ...any) {
	panic(&graph.Error{FQN: n.FQN, Op: n.Op.Name, What: fmt.Sprintf(format, args...)})
}
