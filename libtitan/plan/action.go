package plan

import (
	"fmt"

	"titan/libtitan/graph"
	"titan/libtitan/pipeline"
)

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
