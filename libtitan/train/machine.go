package train

import (
	"context"

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
	// step runs the rank's program on the inputs in its memory, and applies AdamW if what the ranks find together is finite.
	step(ctx context.Context, k *rank, u update) (found, error)
	// squares is the sum of squares, in float64, of one tensor of each parameter that the rank counts, zero for others.
	squares(which tensorKind) ([]float64, error)
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

// update is what a step does with its gradients.
type update struct {
	valid   int           // labels, over all ranks
	scalars optim.Scalars // but for the gradients' scale
	maxNorm float64       // that follows from this
}

// found is what the ranks know together when a step's gradients are made.
type found struct {
	loss    float64   // mean over the labels
	squares []float64 // of the gradients, summed, of the model's parameters in order
}

func (f found) norm() float64 { return optim.Norm(f.squares) }

func (f found) finite() bool { return isFinite(f.loss) && isFinite(f.norm()) }

// tensorKind is one of the tensors that belong to a parameter.
type tensorKind int

const (
	aParameter tensorKind = iota
	aGradient
	anAverage
	aSquaredAverage
)

// stateKinds are the tensors that are kept from step to step, and saved.
func stateKinds(training bool) []tensorKind {
	if !training {
		return []tensorKind{aParameter}
	}
	return []tensorKind{aParameter, anAverage, aSquaredAverage}
}

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

func (h *host) step(ctx context.Context, k *rank, u update) (found, error) {
	if err := k.runner.Run(ctx); err != nil {
		return found{}, err
	}
	if err := k.exchangeTied(ctx); err != nil {
		return found{}, err
	}
	f, err := h.find(ctx, k, u.valid)
	if err != nil || !f.finite() {
		return f, err
	}
	if err := k.copied(); err != nil {
		return f, err
	}
	u.scalars.GradScale = optim.ClipScale(f.norm(), u.maxNorm)
	for _, p := range h.held {
		fqn := p.Param.FQN
		h.engine.AdamW(h.state.params[fqn], h.state.grads[fqn], h.state.m[fqn], h.state.v[fqn], cpu.AdamW(u.scalars))
	}
	return f, nil
}

// find sums, over the ranks, the losses of the microbatches and the squared norms of the gradients that each owns. Where one
// rank has a value and the others zero, the sum is exact.
func (h *host) find(ctx context.Context, k *rank, valid int) (found, error) {
	n := len(k.job.Params)
	all := make([]float64, n+1)
	own, err := h.squares(aGradient)
	if err != nil {
		return found{}, err
	}
	for i, p := range h.held {
		if p.First {
			all[p.Index] = own[i]
		}
	}
	if k.hasLoss() && valid > 0 {
		for _, l := range k.mem.Loss {
			all[n] += float64(l)
		}
		all[n] /= float64(valid)
	}
	err = k.comm.Sum(ctx, all)
	return found{all[n], all[:n]}, err
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
		for _, kind := range stateKinds(true) {
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
