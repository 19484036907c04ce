package plan

import (
	"fmt"
	"sort"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/pipeline"
)

// key identifies a value of one stage on one microbatch; -1 is "every microbatch".
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

// nodeKind says how often a node runs.
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
		if a, ok := n.Attr.(op.MoveAttr); ok && a.Again {
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

// part is what an action does: the nodes of its stage that it runs, the value that arrives before and the one
// that leaves after, and the stages that they come from and go to.
type part struct {
	runs            func(n *graph.Node) bool
	arrives, leaves *graph.Value
	from, to        int
	backward        bool
}

// part of a stage that an action of kind does. The backward of the input and the weights' are two dead-code
// eliminations of one backward: I is what the gradient that leaves needs, W the rest.
func (b *builder) part(s *Stage, kind pipeline.Kind) (part, error) {
	needed := b.forInput(s)
	switch kind {
	case pipeline.Forward:
		p := part{func(n *graph.Node) bool { return n.Phase == graph.Forward }, s.In, s.Out, s.Index - 1, s.Index + 1, false}
		if s.Labels != nil {
			p.leaves = nil
		}
		return p, nil
	case pipeline.Backward:
		return part{func(n *graph.Node) bool { return n.Phase == graph.Backward }, s.DOut, s.DIn, s.Index + 1, s.Index - 1, true}, nil
	case pipeline.InputGrad:
		return part{func(n *graph.Node) bool { return n.Phase == graph.Backward && needed[n] }, s.DOut, s.DIn, s.Index + 1, s.Index - 1, true}, nil
	case pipeline.WeightGrad:
		return part{func(n *graph.Node) bool { return n.Phase == graph.Backward && !needed[n] }, nil, nil, -1, -1, true}, nil
	}
	return part{}, fmt.Errorf("no action of kind %v is run", kind)
}

// forInput is the backward nodes that the gradient of the stage's input needs; for the first stage, which has
// none, those up to what its last layer's input needs would serve nobody: all is W.
func (b *builder) forInput(s *Stage) map[*graph.Node]bool {
	if have := b.inputGrad[s]; have != nil {
		return have
	}
	need := map[*graph.Node]bool{}
	if s.DIn != nil {
		need[s.DIn.Node] = true
	}
	for i := len(s.Graph.Nodes) - 1; i >= 0; i-- {
		if n := s.Graph.Nodes[i]; need[n] {
			for _, v := range n.In {
				need[v.Node] = true
			}
		}
	}
	b.inputGrad[s] = need
	return need
}

// stage finds a stage that the rank holds, nil if it does not.
func (b *builder) stage(index int) *Stage {
	for _, s := range b.prog.Stages {
		if s.Index == index {
			return s
		}
	}
	return nil
}

func (b *builder) action(a pipeline.Action) error {
	s := b.stage(a.Stage)
	if s == nil {
		return fmt.Errorf("plan: pp rank %d: action %v: the rank does not hold stage %d", b.prog.PP, a, a.Stage)
	}
	p, err := b.part(s, a.Kind)
	if err != nil {
		return fmt.Errorf("plan: pp rank %d: action %v: %w", b.prog.PP, a, err)
	}
	if p.arrives != nil && p.from >= 0 {
		b.transfer(Recv, b.slot(s, p.arrives, a.Microbatch), p.from, a, Tag{s.Index, a.Microbatch, p.backward})
	}
	for _, n := range s.Graph.Nodes {
		if !p.runs(n) || b.nodes[n] != perMicrobatch || n.Op == graph.InputOp {
			continue
		}
		b.add(b.compute(s, n, a))
		if a.Kind != pipeline.InputGrad {
			b.sum(s, n, a)
		}
	}
	if a.Kind == pipeline.WeightGrad {
		for _, n := range s.Graph.Nodes { // made on the way to the input's gradient, and due now
			if b.inputGrad[s][n] {
				b.sum(s, n, a)
			}
		}
	}
	if p.leaves != nil {
		b.transfer(Send, b.slot(s, p.leaves, a.Microbatch), p.to, a, Tag{p.to, a.Microbatch, p.backward})
	}
	return nil
}

// transfer sends a value to the rank of another stage, or receives it from there.
func (b *builder) transfer(kind Kind, slot *Slot, stage int, a pipeline.Action, tag Tag) {
	step := Step{Kind: kind, Peer: b.stageRank[stage], Action: a, Tag: tag}
	if kind == Send {
		step.In = []*Slot{slot}
	} else {
		step.Out = []*Slot{slot}
	}
	b.add(step)
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
	return step
}

// addsItself reports whether n adds a gradient to its sum as it makes it: if its op can, and its turn among the
// microbatches has come, which it has not where it is run for the sake of the input's gradient.
func (b *builder) addsItself(n *graph.Node, a pipeline.Action) bool {
	return n.Op.CanAdd && a.Kind != pipeline.InputGrad && !(a.Kind == pipeline.WeightGrad && b.inputGrad[b.stage(a.Stage)][n])
}

// sum adds the gradients among n's results that n does not add itself.
func (b *builder) sum(s *Stage, n *graph.Node, a pipeline.Action) {
	for _, v := range n.Results {
		name, ok := b.grads[v]
		if !ok || b.addsItself(n, a) {
			continue
		}
		b.add(Step{Kind: Accumulate, In: []*Slot{b.slot(s, v, a.Microbatch)}, Out: []*Slot{b.gradSlot(name, v)}, Add: []bool{b.started[name]}, Action: a})
		b.started[name] = true
	}
}

func (b *builder) gradSlot(name string, v *graph.Value) *Slot {
	if b.sums[name] == nil {
		b.sums[name] = b.prog.local(v)
		b.sums[name].Class, b.sums[name].Name = Grad, name
	}
	return b.sums[name]
}

// slot finds or makes the place of v; a view lies where its input does.
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
	case v.Node.Op.View:
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

// lifetimes finds the first and last step that touches each arena slot. What the prologue makes lives on to
// the end of the step.
func (b *builder) lifetimes() {
	seen := map[*Slot]bool{}
	touch := func(s *Slot, at int) {
		s = s.Root()
		if !seen[s] {
			seen[s], s.First = true, at
		}
		s.Last = at
	}
	for i, st := range b.prog.Steps {
		for _, s := range st.In {
			touch(s, i)
		}
		for _, s := range st.Out {
			touch(s, i)
		}
	}
	used := b.prog.Slots[:0]
	for _, s := range b.prog.Slots {
		if seen[s] {
			used = append(used, s)
		}
		if s.Microbatch < 0 {
			s.First, s.Last = 0, max(s.Last, len(b.prog.Steps)-1)
		}
	}
	b.prog.Slots = used
	sort.SliceStable(used, func(i, j int) bool { return used[i].First < used[j].First })
}
