package exec

import (
	"context"
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/plan"
)

// LoadCUDA binds prog to mem and computes its constants and the copies of its parameters; c carries what crosses to other
// ranks, and is nil where there are none. Run then puts every step on the engine's stream and waits for the last: the first
// time one by one, afterwards as one CUDA graph, unless stages send to each other.
func LoadCUDA(e *cuda.Engine, prog *plan.Program, mem *CUDAMemory, c Collectives) (*Runner, error) {
	peers, err := newGPUPeers(e, prog, c)
	if err != nil {
		return nil, err
	}
	mem.peers = peers
	if err := peers.openWindow(); err != nil {
		return nil, err
	}
	if err := computeOnce(e, prog, mem); err != nil {
		return nil, err
	}
	if err := compileFused(e, prog); err != nil {
		return nil, err
	}
	if mem.cache != nil {
		return loadCached(prog, mem, peers)
	}
	g := &gpuProgram{e: e, peers: peers}
	g.add(Cost{Class: "inputs"}, "inputs", func() error { return e.Stream.Upload(mem.inputs, mem.host, 0, mem.inputBytes) })
	if err := g.bindSteps(prog, mem); err != nil {
		return nil, err
	}
	g.add(Cost{Class: "sends"}, "sends", peers.end(peers.join))
	g.add(Cost{Class: "losses"}, "losses", func() error { return e.Stream.Download(mem.host, mem.inputBytes, mem.loss, 4*len(mem.Loss)) })
	return &Runner{prog: prog, gpu: g, steps: []func(context.Context) error{g.run}}, nil
}

// computeOnce computes prog's constants and the copies of its parameters.
func computeOnce(e *cuda.Engine, prog *plan.Program, mem *CUDAMemory) error {
	for _, list := range [][]plan.Step{prog.Constants, prog.Copies} {
		for i := range list {
			work, err := bindCUDA(e, &list[i], mem)
			if err != nil {
				return err
			}
			if err := work(); err != nil {
				return err
			}
		}
	}
	return nil
}

// bindSteps adds the work of prog's steps, each after the moves beside it whose memory it touches.
func (g *gpuProgram) bindSteps(prog *plan.Program, mem *CUDAMemory) error {
	fused := fuseLosses(prog)
	for i := range prog.Steps {
		s := &prog.Steps[i]
		g.at = append(g.at, len(g.works))
		if fused[s] == s || s.Node != nil && s.Node.Op.View {
			continue // done at its backward; or nothing is to be done
		}
		together := []*plan.Step{s}
		if first := fused[s]; first != nil {
			together = append(together, first)
		}
		work, err := bindWith(g.e, s, fused[s], mem)
		if err != nil {
			return err
		}
		reads, writes, err := mem.touches(together...)
		if err != nil {
			return err
		}
		g.add(costOf(s), s.String(), g.peers.before(work, reads, writes, s))
	}
	return nil
}

// bindWith is the work of s, and of the loss that it is made with; nil: none.
func bindWith(e *cuda.Engine, s, loss *plan.Step, mem *CUDAMemory) (cuda.Work, error) {
	if loss != nil {
		return bindLossBoth(e, loss, s, mem)
	}
	return bindCUDA(e, s, mem)
}

// gpuCall is one application of an op on the device's memory.
type gpuCall struct {
	e       *cuda.Engine
	attr    any
	in, out []gpuTensor
	add     []bool // per result: add into it
}

// bindCUDA finds the memory and the kernel of a step.
func bindCUDA(e *cuda.Engine, s *plan.Step, mem *CUDAMemory) (cuda.Work, error) {
	c, err := gpuCallOf(e, s, mem)
	if err != nil {
		return nil, err
	}
	room := mem.arena
	if s.Scratch != nil {
		room, _ = mem.inArena(s.Scratch)
	}
	if work, ok, err := mem.peers.bind(s, c, room); ok {
		return work, err
	}
	switch {
	case s.Kind == plan.Accumulate:
		return gpuAccumulate(c)
	case s.Node.Op.View:
		return func() error { return nil }, nil
	}
	bind := cudaKernels[s.Node.Op.Name]
	if bind == nil {
		return nil, fmt.Errorf("exec: %s: no kernel on cuda", s)
	}
	work, err := bind(c)
	if err != nil {
		return nil, fmt.Errorf("exec: %s: %w", s, err)
	}
	return work, nil
}

func gpuCallOf(e *cuda.Engine, s *plan.Step, mem *CUDAMemory) (gpuCall, error) {
	c := gpuCall{e: e, add: s.Add}
	var err error
	if c.in, err = each(s.In, mem.at); err == nil {
		c.out, err = each(s.Out, mem.at)
	}
	if s.Node != nil {
		c.attr = s.Node.Attr
	}
	return c, err
}

// fuseLosses finds the losses whose gradient is made in the same pass over the logits: a cross_entropy over the whole
// vocabulary and the backward that reads what it leaves. Both steps lead to the first.
func fuseLosses(prog *plan.Program) map[*plan.Step]*plan.Step {
	made := map[*plan.Slot]*plan.Step{} // by the slot of the log-sum-exp
	readers := map[*plan.Slot]int{}
	for i := range prog.Steps {
		for _, slot := range prog.Steps[i].In {
			readers[slot]++
		}
	}
	out := map[*plan.Step]*plan.Step{}
	for i := range prog.Steps {
		s := &prog.Steps[i]
		if s.Kind != plan.Compute || prog.LossApart {
			continue
		}
		switch s.Node.Op.Name {
		case "cross_entropy":
			made[s.Out[1]] = s
		case "cross_entropy_backward":
			first := made[s.In[2]]
			if first != nil && readers[s.In[2]] == 1 && first.In[0] == s.In[0] && first.In[1] == s.In[1] {
				out[first], out[s] = first, first
			}
		}
	}
	return out
}

func bindLossBoth(e *cuda.Engine, first, second *plan.Step, mem *CUDAMemory) (cuda.Work, error) {
	f, err := gpuCallOf(e, first, mem)
	if err != nil {
		return nil, err
	}
	b, err := gpuCallOf(e, second, mem)
	if err != nil {
		return nil, err
	}
	rows, vocab := f.in[0].rows()
	return e.CrossEntropyBoth(f.in[0].DType, b.out[0].p, f.out[0].p, f.out[1].p, f.in[0].p, f.in[1].p, b.in[3].p, rows, vocab)
}
