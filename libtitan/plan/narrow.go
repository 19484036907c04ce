package plan

import (
	"titan/libtitan/dtype"
	"titan/libtitan/op"
)

// NarrowGrads keeps a gradient in bfloat16 if one product of bfloat16 or float8 numbers makes all of it: the product sums in
// float32 and rounds once, as PyTorch's does under autocast. What is added up, over microbatches, over ranks or from two uses
// of a weight, stays float32, and so does all of a rank of a pipeline, where the gradients of a tied head's two stages meet.
func (p *Program) NarrowGrads() {
	for slot, s := range p.madeAtOnce() {
		if s.multipliesNarrow() {
			slot.DType = dtype.BFloat16
		}
	}
}

// madeAtOnce are the gradients that one step makes and no other reads or adds to, with that step: none on a rank of a pipeline.
func (p *Program) madeAtOnce() map[*Slot]*Step {
	made, shared := map[*Slot]*Step{}, map[*Slot]bool{} // shared: made by several steps, or read by one
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind == Send || s.Kind == Recv {
			return nil
		}
		for _, in := range s.In {
			shared[in.Root()] = true
		}
		for _, out := range s.Out {
			shared[out] = shared[out] || made[out] != nil
			made[out] = s
		}
	}
	for slot := range made {
		if slot.Class != Grad || shared[slot] {
			delete(made, slot)
		}
	}
	return made
}

// multipliesNarrow reports whether s is a product of numbers narrower than float32.
func (s *Step) multipliesNarrow() bool {
	if s.Kind != Compute {
		return false
	}
	switch s.Node.Attr.(type) {
	case op.EinsumAttr:
		return s.In[0].DType == dtype.BFloat16 && s.In[1].DType == dtype.BFloat16
	case op.Float8ProductAttr:
		return true
	}
	return false
}
