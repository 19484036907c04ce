package plan

import (
	"fmt"
	"sort"

	"titan/libtitan/graph"
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

func (b *builder) action(a pipeline.Action) error {
	var s *Stage
	for _, have := range b.prog.Stages {
		if have.Index == a.Stage {
			s = have
		}
	}
	if s == nil {
		return fmt.Errorf("plan: rank %d: action %v: the rank does not hold stage %d", b.prog.Rank, a, a.Stage)
	}
	phase, arrives, leaves, from, to := graph.Forward, s.In, s.Out, s.Index-1, s.Index+1
	switch a.Kind {
	case pipeline.Forward:
		if s.Labels != nil {
			leaves = nil
		}
	case pipeline.Backward:
		phase, arrives, leaves, from, to = graph.Backward, s.DOut, s.DIn, s.Index+1, s.Index-1
	default:
		return fmt.Errorf("plan: rank %d: action %v: only whole forwards and backwards are run", b.prog.Rank, a)
	}
	if arrives != nil && from >= 0 {
		out := b.slot(s, arrives, a.Microbatch)
		b.add(Step{Kind: Recv, Out: []*Slot{out}, Peer: b.stageRank[from], Action: a, Tag: Tag{s.Index, a.Microbatch, phase == graph.Backward}})
	}
	for _, n := range s.Graph.Nodes {
		if n.Phase != phase || b.nodes[n] != perMicrobatch || n.Op == graph.InputOp {
			continue
		}
		b.add(b.compute(s, n, a))
		for _, v := range n.Results {
			b.sum(s, v, a)
		}
	}
	if leaves != nil {
		in := b.slot(s, leaves, a.Microbatch)
		b.add(Step{Kind: Send, In: []*Slot{in}, Peer: b.stageRank[to], Action: a, Tag: Tag{to, a.Microbatch, phase == graph.Backward}})
	}
	return nil
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
		if name, ok := b.grads[v]; ok && n.Op.CanAdd {
			out = b.gradSlot(name, v)
			step.Add[i] = b.started[name]
			b.started[name] = true
		}
		step.Out = append(step.Out, out)
	}
	return step
}

// sum adds a gradient whose op cannot add by itself.
func (b *builder) sum(s *Stage, v *graph.Value, a pipeline.Action) {
	name, ok := b.grads[v]
	if !ok || v.Node.Op.CanAdd {
		return
	}
	step := Step{Kind: Accumulate, In: []*Slot{b.slot(s, v, a.Microbatch)}, Out: []*Slot{b.gradSlot(name, v)}, Add: []bool{b.started[name]}, Action: a}
	b.started[name] = true
	b.add(step)
}

func (b *builder) gradSlot(name string, v *graph.Value) *Slot {
	if b.sums[name] == nil {
		b.sums[name] = &Slot{Type: v.Type, Class: Grad, Name: name}
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
	slot := &Slot{Type: v.Type, FQN: v.Node.FQN, Microbatch: microbatch}
	switch {
	case v.Node.Op.View:
		root := b.slot(s, v.Node.In[0], microbatch).Root()
		*slot = *root
		slot.Type, slot.Of = v.Type, root
	case v.Node.Op == graph.ParamOp:
		slot.Class, slot.Name = Param, v.Name()
	case b.nodes[v.Node] == once:
		slot.Class, slot.Offset = Const, b.prog.ConstBytes
		b.prog.ConstBytes += roundUp(v.Bytes())
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
