package exec

import (
	"errors"
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/plan"
)

// Stored is what programs on a GPU share and the caller owns, by FQN: parameters, and what is kept of them, copies in another type
// and largest magnitudes, by class.
type Stored struct {
	Params map[string]cuda.Ptr
	Kept   map[plan.Class]map[string]cuda.Ptr
}

// Gradient is a parameter's on the device, float32 or bfloat16; Rows is where its rows lie, 0 if it has them all.
type Gradient struct {
	P, Rows cuda.Ptr
	DType   dtype.DType
	Bytes   int
}

// CUDAMemory is what a program works on, on a GPU. What the caller reads and writes between runs is its Memory, which
// lies in pinned memory of the host and is copied at the beginning and the end of each run.
type CUDAMemory struct {
	*Memory
	stored             Stored
	Grads              map[string]Gradient // by FQN, in the arena: valid from one run to the next
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
	m := &CUDAMemory{Memory: &Memory{}, stored: stored, Grads: map[string]Gradient{}, e: e, size: size, cache: cache}
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
		if err := m.placeGrad(s); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// placeGrad finds the memory of a gradient, or of where its rows lie.
func (m *CUDAMemory) placeGrad(s *plan.Slot) (err error) {
	if s.Class != plan.Grad && s.Class != plan.Rows {
		return nil
	}
	at := m.arena + cuda.Ptr(s.Offset)
	if m.cache != nil {
		if at, err = m.cache.Fix(s.Bytes(), s.Name+" < gradients"); err != nil {
			return err
		}
	}
	for _, named := range s.Named() {
		g := m.Grads[named.Name]
		if s.Class == plan.Rows {
			g.Rows = at
		} else {
			g.P, g.DType, g.Bytes = at+cuda.Ptr(named.Start), named.DType, named.Bytes()
		}
		m.Grads[named.Name] = g
	}
	return nil
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
	p      cuda.Ptr
	stride int // of columns of a matrix: elements from a row of that to the next; 0: it is dense
}

// columns is t for a kernel that may write it as columns of a wider matrix.
func (t gpuTensor) columns() cuda.Columns { return cuda.Columns{P: t.p, Row: t.stride} }

// at finds the memory of a slot.
func (m *CUDAMemory) at(s *plan.Slot) (gpuTensor, error) {
	t := gpuTensor{tensor: tensor{Type: s.Type, at: s.At, logical: s.Logical}, stride: s.Stride}
	known := true
	switch s.Root().Class {
	case plan.Arena:
		t.p, known = m.inArena(s.Root())
		t.p += cuda.Ptr(s.Start)
	case plan.Window:
		t.p = m.peers.window + cuda.Ptr(s.Root().Offset+s.Start)
	case plan.Const:
		t.p = m.consts + cuda.Ptr(s.Root().Offset)
	case plan.Param:
		t.p, known = m.stored.Params[s.Name]
	case plan.Copy, plan.Largest:
		t.p, known = m.stored.Kept[s.Class][s.Name]
		for _, part := range s.Parts { // another program may have had them apart
			known = known && m.stored.Kept[s.Class][part.Name] == t.p+cuda.Ptr(part.Start)
		}
	case plan.Grad:
		g, made := m.Grads[s.Name]
		t.p, known = g.P, made
	case plan.Rows:
		g, made := m.Grads[s.Name]
		t.p, known = g.Rows, made
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
