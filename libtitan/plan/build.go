package plan

import (
	"slices"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/pipeline"
)

// The builder walks the actions of a rank and turns each into steps on slots: sortNodes says how often each node of a
// stage runs, action (action.go) which of them an action runs and what it sends, sum (sum.go) where gradients go, and
// lifetimes (lifetime.go) when each slot is live.

// key identifies a value of one stage on one microbatch; microbatch -1 is a value that all of them share.
type key struct {
	value      *graph.Value
	microbatch int
}

type builder struct {
	prog      *Program
	stageRank []int
	slots     map[key]*Slot
	nodes     map[*graph.Node]nodeKind
	grads     map[*graph.Value]string // the parameter whose gradient a value is part of
	sums      map[string]*Slot        // by parameter
	started   map[string]bool         // sums that hold something already
	inputGrad map[*Stage]map[*graph.Node]bool
}

// nodeKind says how often a node runs: as often as the one of its inputs that changes most often, hence the order.
type nodeKind uint8

const (
	perMicrobatch nodeKind = iota
	perStep                // it depends on parameters alone
	once                   // it depends on nothing
)

// sortNodes decides how often each node of s runs, and puts those that do not depend on a microbatch first.
func (b *builder) sortNodes(s *Stage) {
	for i, p := range s.Params {
		b.grads[s.Grads[i]] = p.Name()
	}
	for _, n := range s.Graph.Nodes {
		kind := once
		switch n.Op {
		case graph.InputOp:
			kind = perMicrobatch
		case graph.ParamOp:
			kind = perStep
		}
		for _, v := range n.In {
			kind = min(kind, b.nodes[v.Node])
		}
		if op.Again(n) {
			kind = perMicrobatch
		}
		b.nodes[n] = kind
		switch {
		case n.Op == graph.InputOp || n.Op == graph.ParamOp:
		case kind == once:
			b.prog.Constants = append(b.prog.Constants, b.compute(s, n, pipeline.Action{}))
		case kind == perStep:
			step := b.compute(s, n, pipeline.Action{Stage: s.Index})
			step.Prologue = true
			b.prog.Steps = append(b.prog.Steps, step)
		}
	}
}

func (b *builder) add(s Step) { b.prog.Steps = append(b.prog.Steps, s) }

// compute makes the step that runs n; results that are gradients go where they are summed, if n's op can add.
func (b *builder) compute(s *Stage, n *graph.Node, a pipeline.Action) Step {
	step := Step{Node: n, Action: a, Add: make([]bool, len(n.Results))}
	for _, v := range n.In {
		step.In = append(step.In, b.slot(s, v, a.Microbatch))
	}
	for i, v := range n.Results {
		out := b.slot(s, v, a.Microbatch)
		if name, ok := b.grads[v]; ok && b.addsItself(n, a) {
			out = b.gradSlot(name, v)
			step.Add[i] = b.started[name]
			b.started[name] = true
		}
		step.Out = append(step.Out, out)
	}
	b.scratch(&step)
	return step
}

// slot finds or makes the place of v; a view lies where its input does, and so does what is made in place.
func (b *builder) slot(s *Stage, v *graph.Value, microbatch int) *Slot {
	if b.nodes[v.Node] != perMicrobatch {
		microbatch = -1
	}
	k := key{v, microbatch}
	if have := b.slots[k]; have != nil {
		return have
	}
	slot := b.prog.local(v)
	slot.FQN, slot.Microbatch = v.Node.FQN, microbatch
	switch {
	case v.Node.Op.View || b.inPlace(s, v):
		root := b.slot(s, v.Node.In[0], microbatch).Root()
		view := *root
		view.Type, view.At, view.Logical, view.Of = slot.Type, slot.At, slot.Logical, root
		slot = &view
	case v.Node.Op == graph.ParamOp:
		slot.Class, slot.Name = Param, v.Name()
	case b.nodes[v.Node] == once:
		slot.Class, slot.Offset = Const, b.prog.ConstBytes
		b.prog.ConstBytes += roundUp(slot.Bytes())
	case v == s.In && v.Node.Op == graph.InputOp && s.Index == 0:
		slot.Class = Tokens
	case v == s.Labels:
		slot.Class = Labels
	case v == s.Scale:
		slot.Class = Scale
	case v == s.Out && s.Labels != nil:
		slot.Class = Loss
	default:
		b.prog.Slots = append(b.prog.Slots, slot)
	}
	b.slots[k] = slot
	return slot
}

// inPlace reports whether v may take the place of its node's first input: no other node of the backward reads that.
func (b *builder) inPlace(s *Stage, v *graph.Value) bool {
	if !v.Node.Op.InPlace || v.Out != 0 || b.nodes[v.Node] != perMicrobatch {
		return false
	}
	in := v.Node.In[0]
	if in.Node.Op == graph.InputOp || in == s.Out {
		return false
	}
	for _, n := range s.Graph.Nodes {
		if n != v.Node && n.Phase == graph.Backward && slices.Contains(n.In, in) {
			return false
		}
	}
	return b.nodes[in.Node] == perMicrobatch
}
