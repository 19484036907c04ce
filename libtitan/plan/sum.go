package plan

import (
	"titan/libtitan/graph"
	"titan/libtitan/pipeline"
)

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
