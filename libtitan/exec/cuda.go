package exec

import (
	"context"
	"errors"
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/plan"
)

// Stored is what programs on a GPU share and the caller owns: parameters, and copies of them in another type, by FQN.
type Stored struct{ Params, Copies map[string]cuda.Ptr }

// CUDAMemory is what a program works on, on a GPU. What the caller reads and writes between runs is its Memory, which
// lies in pinned memory of the host and is copied at the beginning and the end of each run.
type CUDAMemory struct {
	*Memory
	stored             Stored
	Grads              map[string]cuda.Ptr // by FQN, in the arena: valid from one run to the next
	e                  *cuda.Engine
	host               *cuda.Host
	inputs, loss       cuda.Ptr // the device's copies: tokens and labels by microbatch, the scale; the losses
	inputBytes         int
	arena, consts, all cuda.Ptr
	size               int // of a microbatch
	peers              *gpuPeers
	cache              *CUDACache   // nil: values lie in the planned arena
	values             *plan.Cached // where they lie else
}

// NewCUDAMemory takes the memory of prog, whose gradients lie in its arena, for microbatches of size tokens. With a cache
// values are taken from it as the program runs, and all else when it is loaded.
func NewCUDAMemory(e *cuda.Engine, prog *plan.Program, microbatches, size int, stored Stored, cache *CUDACache) (*CUDAMemory, error) {
	m := &CUDAMemory{Memory: &Memory{}, stored: stored, Grads: map[string]cuda.Ptr{}, e: e, size: size, cache: cache}
	m.inputBytes = 8*microbatches*size + 4
	var err error
	if m.host, err = e.AllocHost(m.inputBytes + 4*microbatches); err != nil {
		return nil, err
	}
	for i := range microbatches {
		m.Tokens = append(m.Tokens, cuda.HostOf[int32](m.host, 8*i*size, size))
		m.Labels = append(m.Labels, cuda.HostOf[int32](m.host, 8*i*size+4*size, size))
	}
	m.Scale = cuda.HostOf[float32](m.host, m.inputBytes-4, 1)
	m.Loss = cuda.HostOf[float32](m.host, m.inputBytes, microbatches)
	inputs, losses, consts := gpuRound(m.inputBytes), gpuRound(4*microbatches), gpuRound(prog.ConstBytes)
	if m.all, err = m.take(inputs+losses+consts, prog.ArenaBytes); err != nil {
		return nil, fmt.Errorf("exec: %d MiB for activations: %w", prog.ArenaBytes>>20, err)
	}
	m.inputs = m.all
	m.loss = m.inputs + cuda.Ptr(inputs)
	m.consts = m.loss + cuda.Ptr(losses)
	m.arena = m.consts + cuda.Ptr(consts)
	for _, s := range prog.Slots {
		switch {
		case s.Class != plan.Grad:
		case cache == nil:
			m.Grads[s.Name] = m.arena + cuda.Ptr(s.Offset)
		default:
			if m.Grads[s.Name], err = cache.Fix(s.Bytes(), s.Name+" < gradients"); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// gpuRound is n rounded to what a device's allocations are aligned to.
func gpuRound(n int) int { return (n + 255) / 256 * 256 }

// Free gives the memory back.
func (m *CUDAMemory) Free() error {
	if m.peers != nil {
		if err := m.peers.free(); err != nil {
			return err
		}
	}
	if m.cache != nil {
		return errors.Join(m.unfix(), m.host.Free())
	}
	if err := m.e.Free(m.all); err != nil {
		return err
	}
	return m.host.Free()
}

// gpuTensor is a value with its memory on the device; the tensor's own data is nil.
type gpuTensor struct {
	tensor
	p cuda.Ptr
}

// at finds the memory of a slot.
func (m *CUDAMemory) at(s *plan.Slot) (gpuTensor, error) {
	t := gpuTensor{tensor: tensor{Type: s.Type, at: s.At, logical: s.Logical}}
	known := true
	switch s.Root().Class {
	case plan.Arena:
		t.p, known = m.inArena(s.Root())
	case plan.Window:
		t.p = m.peers.window + cuda.Ptr(s.Root().Offset+s.Start)
	case plan.Const:
		t.p = m.consts + cuda.Ptr(s.Root().Offset)
	case plan.Param:
		t.p, known = m.stored.Params[s.Name]
	case plan.Copy:
		t.p, known = m.stored.Copies[s.Name]
	case plan.Grad:
		t.p, known = m.Grads[s.Name]
	case plan.Tokens:
		t.p = m.inputs + cuda.Ptr(8*s.Microbatch*m.size)
	case plan.Labels:
		t.p = m.inputs + cuda.Ptr(8*s.Microbatch*m.size+4*m.size)
	case plan.Scale:
		t.p = m.inputs + cuda.Ptr(m.inputBytes-4)
	case plan.Loss:
		t.p = m.loss + cuda.Ptr(4*s.Microbatch)
	}
	if !known {
		return t, fmt.Errorf("exec: %v %s%s: no memory on the device", s.Class, s.Name, s.FQN)
	}
	return t, nil
}

// Losses is where the program leaves the loss of each microbatch, float32.
func (m *CUDAMemory) Losses() cuda.Ptr { return m.loss }

// LoadCUDA binds prog to mem and computes its constants and the copies of its parameters; c carries what crosses to other ranks, and is nil where there
// are none. Run then puts every step on the engine's stream and waits for the last: the first time one by one, afterwards
// as one CUDA graph, unless stages send to each other.
func LoadCUDA(e *cuda.Engine, prog *plan.Program, mem *CUDAMemory, c Collectives) (*Runner, error) {
	peers, err := newGPUPeers(e, prog, c)
	if err != nil {
		return nil, err
	}
	mem.peers = peers
	if err := peers.openWindow(); err != nil {
		return nil, err
	}
	for _, list := range [][]plan.Step{prog.Constants, prog.Copies} {
		for i := range list {
			work, err := bindCUDA(e, &list[i], mem)
			if err != nil {
				return nil, err
			}
			if err := work(); err != nil {
				return nil, err
			}
		}
	}
	if err := compileFused(e, prog); err != nil {
		return nil, err
	}
	if mem.cache != nil {
		return loadCached(prog, mem, peers)
	}
	g := &gpuProgram{e: e, peers: peers}
	g.add(Cost{Class: "inputs"}, "inputs", func() error { return e.Stream.Upload(mem.inputs, mem.host, 0, mem.inputBytes) })
	fused := fuseLosses(prog)
	for i := range prog.Steps {
		s := &prog.Steps[i]
		if fused[s] == s || s.Node != nil && s.Node.Op.View {
			continue // done at its backward; or nothing is to be done
		}
		together := []*plan.Step{s}
		work, err := bindCUDA(e, s, mem)
		if with := fused[s]; err == nil && with != nil {
			together = append(together, with)
			work, err = bindLossBoth(e, with, s, mem)
		}
		if err != nil {
			return nil, err
		}
		reads, writes, err := mem.touches(together...)
		if err != nil {
			return nil, err
		}
		g.add(costOf(s), s.String(), peers.before(work, reads, writes, s))
	}
	g.add(Cost{Class: "sends"}, "sends", peers.end(peers.join))
	g.add(Cost{Class: "losses"}, "losses", func() error { return e.Stream.Download(mem.host, mem.inputBytes, mem.loss, 4*len(mem.Loss)) })
	return &Runner{prog: prog, gpu: g, steps: []func(context.Context) error{g.run}}, nil
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
// vocabulary and the backward that reads what it leaves. Each of the two steps is given the first.
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
