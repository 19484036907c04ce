package train

import (
	"titan/libtitan/comm"
	"titan/libtitan/device/cpu"
	"titan/libtitan/exec"
	"titan/libtitan/manifest"
	"titan/libtitan/optim"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// machine is what a rank computes on: it has the rank's parameters and their state, loads programs that work on them,
// and updates them.
type machine interface {
	// load binds a program to the parameters, with inputs for microbatches of size tokens.
	load(prog *plan.Program, microbatches, size int, c comm.Comm) (*exec.Memory, *exec.Runner, error)
	// squares is the sum of squares, in float64, of one tensor of each parameter that the rank counts, zero for others.
	squares(which tensorKind) ([]float64, error)
	// update applies AdamW.
	update(s optim.Scalars) error
	// exchange gives the gradient of a parameter to f, which fills theirs with a peer's, and adds that.
	exchange(fqn string, f func(mine, theirs []float32) error) error
	// take holds the parameters and moments fast for a save in one of the manifest's modes. One that goes on beside the
	// training is of what they are now; else they stay.
	take(mode string) (snapshot, error)
	// close gives the device's memory back.
	close() error
}

// snapshot is the state that a rank saves.
type snapshot interface {
	// wait waits until parameters and moments may change.
	wait() error
	// read fills dst with a part of a tensor, float32, from byte off on. Several goroutines call it.
	read(kind tensorKind, fqn string, dst []byte, off int64) error
	// free ends it: nothing is read any more. The next one may be taken.
	free() error
}

// tensorKind is one of the tensors that belong to a parameter.
type tensorKind int

const (
	aParameter tensorKind = iota
	aGradient
	anAverage
	aSquaredAverage
)

func (t tensorKind) String() string {
	return [...]string{"parameter", "gradient", "exp_avg", "exp_avg_sq"}[t]
}

// host computes on the CPU, on the state itself.
type host struct {
	engine *cpu.Engine
	held   []parallel.Held
	state  *state
	copy   *state // of what is saved beside the training; nil: never yet
}

func (h *host) load(prog *plan.Program, microbatches, size int, c comm.Comm) (*exec.Memory, *exec.Runner, error) {
	mem := exec.NewMemory(prog, microbatches, size, h.state.params, h.state.grads)
	r, err := exec.Load(h.engine, prog, mem, c)
	return mem, r, err
}

func (h *host) squares(which tensorKind) ([]float64, error) {
	list := h.state.list(which)
	out := make([]float64, len(h.held))
	for i, p := range h.held {
		if p.First {
			out[i] = h.engine.SumSquares(list[p.Param.FQN])
		}
	}
	return out, nil
}

func (h *host) update(s optim.Scalars) error {
	for _, p := range h.held {
		fqn := p.Param.FQN
		h.engine.AdamW(h.state.params[fqn], h.state.grads[fqn], h.state.m[fqn], h.state.v[fqn], cpu.AdamW(s))
	}
	return nil
}

func (h *host) exchange(fqn string, f func(mine, theirs []float32) error) error {
	mine := h.state.grads[fqn]
	theirs := make([]float32, len(mine))
	if err := f(mine, theirs); err != nil {
		return err
	}
	h.engine.Add(mine, mine, theirs) // of two terms: the same bits on both ranks
	return nil
}

func (h *host) take(mode string) (snapshot, error) {
	if mode == manifest.AsyncOff {
		return h.state, nil
	}
	if h.copy == nil {
		h.copy = newState()
	}
	for _, p := range h.held {
		if !p.First {
			continue
		}
		for _, kind := range []tensorKind{aParameter, anAverage, aSquaredAverage} {
			to, from, fqn := h.copy.list(kind), h.state.list(kind), p.Param.FQN
			if to[fqn] == nil {
				to[fqn] = make([]float32, len(from[fqn]))
			}
			h.engine.For(len(from[fqn]), 1<<18, func(lo, hi int) { copy(to[fqn][lo:hi], from[fqn][lo:hi]) })
		}
	}
	return h.copy, nil
}

func (h *host) close() error { return nil }
