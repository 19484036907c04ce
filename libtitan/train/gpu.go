package train

import (
	"context"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exec"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// gpu computes on a GPU, which alone has the state; gradients are in the memory of the program that trains.
type gpu struct {
	e         *cuda.Engine
	cache     *exec.CUDACache // nil: values lie in a planned arena
	held      []parallel.Held
	state     map[tensorKind]map[string]cuda.Ptr // by FQN: the parameters, and for training their moments
	kept      map[plan.Class]map[string]cuda.Ptr // copies of parameters and their largest magnitudes, as the program wants them
	rooms     []cuda.Ptr                         // memory of all these
	optimizer *cuda.Optimizer
	after     []cuda.Work // what follows a program that is not recorded: the optimizer
	programs  []*exec.CUDAMemory
	lanes     chan *lane // those that are free
	laneBytes int
	copies    *copies     // nil: nothing is saved beside the training
	saved     *cuda.Event // the save under way has copied the state, which may change then
	numParams int         // of the model
	hasLoss   bool        // the rank's loss counts
}

func (g *gpu) load(prog *plan.Program, microbatches, size int, c comm.Comm) (*exec.Memory, *exec.Runner, error) {
	for i := range prog.Copies {
		if err := g.keep(prog.Copies[i].Out[0]); err != nil {
			return nil, nil, err
		}
	}
	mem, err := exec.NewCUDAMemory(g.e, prog, microbatches, size, exec.Stored{Params: g.state[aParameter], Kept: g.kept}, g.cache)
	if err != nil {
		return nil, nil, err
	}
	g.programs = append(g.programs, mem)
	peers, _ := c.(exec.Collectives)
	r, err := exec.LoadCUDA(g.e, prog, mem, peers)
	if err == nil && prog.GradsInArena {
		err = g.train(prog, mem, r, c)
	}
	return mem.Memory, r, err
}

// keep takes memory for what is kept of a parameter, and for all that is joined with it, unless it is there.
func (g *gpu) keep(s *plan.Slot) error {
	list := g.kept[s.Class]
	if list[s.Name] != 0 {
		return nil
	}
	all := s.Root()
	at, err := g.room(all.Bytes(), plan.CopyOwner(all))
	for _, named := range all.Named() {
		list[named.Name] = at + cuda.Ptr(named.Start)
	}
	return err
}

// train ties the optimizer to the gradients of a program, and makes it the program's end. Of the gradients that are whole before
// the program waits for its last reductions, the norm is begun beside those.
func (g *gpu) train(prog *plan.Program, mem *exec.CUDAMemory, r *exec.Runner, c comm.Comm) error {
	tail, early := prog.Tail()
	if r.Unrecorded() != "" {
		early = nil
	}
	all, tally, err := g.trained(mem, early)
	if err != nil {
		return err
	}
	if g.optimizer, err = g.e.NewOptimizer(all, tally); err != nil {
		return err
	}
	sum, err := g.sumTally(c)
	if err != nil {
		return err
	}
	values, grads := 0.0, map[bool]float64{} // bytes of parameters, and of their gradients, by whether they are early
	for i, p := range all {
		values += 4 * float64(p.N)
		grads[p.Early] += float64(mem.Grads[g.held[i].Param.FQN].Bytes)
	}
	if len(early) > 0 {
		r.Before(tail, exec.Cost{Class: "norms", Bytes: grads[true]}, g.optimizer.Begin)
	}
	for _, w := range []struct {
		exec.Cost
		work cuda.Work
	}{
		{exec.Cost{Class: "norms", Bytes: grads[false]}, g.optimizer.Measure}, {exec.Cost{Class: "norms of all ranks"}, sum},
		{exec.Cost{Class: "clip"}, g.optimizer.Clip}, {exec.Cost{Class: "adamw", Bytes: 6*values + grads[false] + grads[true]}, g.update},
	} {
		if r.Unrecorded() != "" {
			g.after = append(g.after, w.work)
			continue
		}
		r.Then(w.Cost, w.work)
	}
	return nil
}

// trained is the rank's parameters with all that belongs to them, those whose gradients are early among them, and what a step
// tells of them.
func (g *gpu) trained(mem *exec.CUDAMemory, early map[string]bool) (all []cuda.Param, t cuda.Tally, err error) {
	t.NumParams = g.numParams
	if g.hasLoss {
		t.Losses, t.NumLosses = mem.Losses(), len(mem.Loss)
	}
	for _, h := range g.held {
		fqn := h.Param.FQN
		grad, ok := mem.Grads[fqn]
		if !ok {
			return nil, t, fmt.Errorf("no gradient of %s is made", fqn)
		}
		where := -1
		if h.First {
			where = h.Index
		}
		t.Where = append(t.Where, where)
		all = append(all, cuda.Param{
			P: g.state[aParameter][fqn], G: grad.P, M: g.state[anAverage][fqn], V: g.state[aSquaredAverage][fqn],
			Copy: g.kept[plan.Copy][fqn], Largest: g.kept[plan.Largest][fqn], Rows: grad.Rows,
			Dim: int(rowBytes(h) / 4), N: int(h.NumElements()), NarrowG: grad.DType == dtype.BFloat16, Early: early[fqn],
		})
	}
	return all, t, nil
}

// update applies AdamW, once no save copies the state.
func (g *gpu) update() error {
	if err := g.e.Stream.WaitOutside(g.saved); err != nil {
		return err
	}
	return g.optimizer.Update()
}

// sumTally adds up what the ranks tell each other in a step.
func (g *gpu) sumTally(c comm.Comm) (cuda.Work, error) {
	peers, ok := c.(exec.Collectives)
	if !ok || c.Size() == 1 {
		return func() error { return nil }, nil
	}
	world := comm.Group{Name: "step", Ranks: comm.World(c.Size()).Ranks}
	if err := peers.Open(context.Background(), []comm.Group{world}); err != nil {
		return nil, err
	}
	told := g.optimizer.Told()
	return peers.AllReduceOn(g.e.Stream, world, "losses and norms", dtype.Float64, comm.Sum, cuda.Reduced{In: told, Out: told})
}

// step puts all of a step on the stream, and waits for what was found: the update goes on when this returns.
func (g *gpu) step(ctx context.Context, k *rank, u update) (found, error) {
	s := u.scalars
	g.optimizer.Set(cuda.AdamW{
		LR: s.LR, Beta1: s.Beta1, Beta2: s.Beta2, Eps: s.Eps, WeightDecay: s.WeightDecay, C1: s.C1, C2: s.C2, MaxNorm: u.maxNorm,
	})
	if err := k.runner.Start(ctx); err != nil {
		return found{}, err
	}
	if err := g.follow(ctx, k); err != nil {
		return found{}, err
	}
	if err := k.runner.Await(ctx, g.optimizer.Clipped); err != nil {
		return found{}, err
	}
	all := g.optimizer.Tally()
	f := found{squares: all[:g.numParams]}
	if u.valid > 0 {
		f.loss = all[g.numParams] / float64(u.valid)
	}
	return f, g.copies.ready()
}

// follow does what comes after a program that is not recorded.
func (g *gpu) follow(ctx context.Context, k *rank) error {
	if g.after == nil {
		return nil
	}
	if err := k.runner.Await(ctx, g.e.Stream); err != nil {
		return err
	}
	if err := k.exchangeTied(ctx); err != nil {
		return err
	}
	for _, work := range g.after {
		if err := work(); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpu) squares(which tensorKind) ([]float64, error) {
	return g.optimizer.Squares(cuda.Which(which))
}

func (g *gpu) exchange(fqn string, f func(mine, theirs []float32) error) error {
	at := g.programs[0].Grads[fqn].P // of the program that trains, which is loaded first; float32 and whole, as all of a pipeline's
	n := 0
	for _, h := range g.held {
		if h.Param.FQN == fqn {
			n = int(h.NumElements())
		}
	}
	mine, theirs := make([]float32, n), make([]float32, n)
	if err := g.e.Download(floatBytes(mine), at); err != nil {
		return err
	}
	if err := f(mine, theirs); err != nil {
		return err
	}
	for i := range mine {
		mine[i] += theirs[i]
	}
	return g.e.Upload(at, floatBytes(mine))
}
