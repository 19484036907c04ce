package train

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/exec"
	"titan/libtitan/exit"
	"titan/libtitan/optim"
	"titan/libtitan/parallel"
	"titan/libtitan/placement"
)

// rank is one rank of a run: its part of the parameters and their state, and its program.
type rank struct {
	*run
	comm     comm.Comm
	held     []parallel.Held // its parts of the parameters
	state    *state          // the host's; nil where a GPU has it
	machine  machine
	mem      *exec.Memory
	runner   *exec.Runner
	eval     *evaluator
	schedule *optim.Schedule
	pos      position
	ahead    *share // of the next step, read already; nil: it is not
	saver    saver
	stalled  time.Duration // that training waited for saves since the last record
	trace    *memoryTrace  // nil: none
	unheard  bool          // what rank 0 reports can no longer be written
}

// newRank makes a rank's state, and for training all else that its steps need.
func (r *run) newRank(c comm.Comm, training bool) (*rank, error) {
	k := &rank{run: r, comm: c, held: r.job.Held(c.Rank()), pos: r.left}
	if err := k.openTrace(); err != nil {
		return nil, err
	}
	if err := k.place(training); err != nil || !training {
		return k, err
	}
	k.started("weights, where they are computed with")
	if err := k.load(); err != nil {
		return nil, err
	}
	k.started("the step tied to its memory and kernels")
	var err error
	if k.schedule, err = optim.NewSchedule(*r.job.Manifest.LRScheduler, r.job.Manifest.Training.Steps); err != nil {
		return nil, err
	}
	if c.Rank() == 0 {
		k.tellStart()
	}
	if r.validation != nil {
		k.eval, err = k.newEvaluator(r.validation, r.job.Manifest.Data.ValidationSteps)
	}
	return k, err
}

// load plans the rank's step, unless that is done, and binds it.
func (k *rank) load() (err error) {
	prog := k.programs[k.comm.Rank()]
	if prog == nil {
		if prog, err = k.program(k.comm.Rank()); err != nil {
			return err
		}
	}
	if k.mem, k.runner, err = k.machine.load(prog, k.job.NumMicrobatches, k.microbatchTokens(), k.comm); err != nil {
		return err
	}
	return k.follow(prog)
}

// tellStart says what is worth knowing before the first step.
func (k *rank) tellStart() {
	if why := k.runner.Unrecorded(); why != "" {
		k.Log.Debug("the step is launched kernel by kernel and not as one CUDA graph: " + why)
	}
	for _, w := range k.schedule.Warnings {
		k.Log.Warn(w)
	}
	k.compareRate(k.schedule)
}

// started tells of a part of the start, once for all ranks.
func (k *rank) started(part string) {
	if k.comm.Rank() == 0 {
		k.startup.done(part)
	}
}

// place makes the state where it is computed with.
func (k *rank) place(training bool) (err error) {
	if k.gpu != nil {
		k.machine, err = newGPU(k, training)
		return err
	}
	k.machine = &host{engine: k.engine, held: k.held, state: newState()}
	k.state = k.machine.(*host).state
	return k.loadState(training)
}

// microbatchTokens is how many positions of a microbatch a rank has.
func (r *run) microbatchTokens() int {
	return r.job.Rows * r.job.Manifest.Training.SeqLen / r.job.Mesh.Size(placement.CP)
}

// loop trains to the last step. stop ends it after the current one.
func (k *rank) loop(ctx, stop context.Context) error {
	t := k.job.Manifest.Training
	for k.pos.Step < t.Steps {
		stopping, err := k.step(ctx, stop)
		if err != nil {
			return err
		}
		k.comm.SetTimeout(k.stepTimeout())
		last := k.pos.Step == t.Steps || stopping
		if k.eval != nil && (k.pos.Step%k.job.Manifest.Data.ValidationInterval == 0 || last) {
			loss, tokens, err := k.eval.run(ctx)
			if err != nil {
				return err
			}
			if k.comm.Rank() == 0 {
				k.report.validation(k.pos.Step, loss, tokens)
			}
		}
		if k.due(last) {
			if err := k.save(ctx, last); err != nil {
				return err
			}
		}
		if stopping {
			return k.stopped(ctx)
		}
	}
	return k.unwritten()
}

// stopped is why the run ends before its last step, the same on every rank.
func (k *rank) stopped(ctx context.Context) error {
	if k.unheard {
		return k.told(ctx, "report error", k.unwritten())
	}
	return exit.Interrupted.Errorf("interrupted after step %d%s", k.pos.Step, k.savedHint())
}

// unwritten is rank 0's error where something that it reports could not be written. It counts at the next step, or at
// the end, when all ranks stop and what is learnt is saved.
func (k *rank) unwritten() error {
	if k.comm.Rank() != 0 || k.report.lost == nil {
		return nil
	}
	return exit.Lost.Errorf("%v: stopped after step %d%s", k.report.lost, k.pos.Step, k.savedHint())
}

// stepTimeout is how long a rank may be waited for once the first step is done.
func (k *rank) stepTimeout() time.Duration {
	return cmp.Or(k.CommTimeout, k.InitTimeout, comm.DefaultTimeout)
}

// step does one optimizer step. The next one's rows are read meanwhile.
func (k *rank) step(ctx, stop context.Context) (stopping bool, err error) {
	began := time.Now()
	b, err := k.fill(ctx, k.train, k.mem, k.pos.Rows)
	if err != nil {
		return false, err
	}
	loaded := time.Now()
	k.mem.Scale[0] = 0
	if b.valid > 0 {
		k.mem.Scale[0] = float32(1 / float64(b.valid))
	}
	factor := k.schedule.Factor(k.pos.Epoch)
	scalars := optim.AdamW{Optimizer: *k.job.Manifest.Optimizer}.At(k.pos.Updates+1, factor, 1)
	reading := k.readAhead(b)
	f, err := k.machine.step(ctx, k, update{b.valid, scalars, k.job.Manifest.Training.MaxNorm})
	k.ahead = <-reading
	if err != nil {
		return false, err
	}
	if stopping, err = k.agree(ctx, stop); err != nil {
		return false, err
	}
	step, norm := k.pos.Step+1, f.norm()
	if err := k.finite(ctx, step, f.loss, norm); err != nil {
		return false, err
	}
	k.pos = k.pos.after(b)
	if k.comm.Rank() == 0 {
		k.report.step(record{
			Step: step, Loss: f.loss, GradNorm: norm, LR: k.job.Manifest.Optimizer.LR * factor, BatchHash: b.hash,
			Tokens: b.tokens, ValidTokens: b.valid, TokensSeen: k.pos.Tokens,
			DataSeconds: loaded.Sub(began).Seconds(), StepSeconds: time.Since(began).Seconds(),
			StalledSeconds: k.stalled.Seconds(), GradNorms: k.gradNorms(f.squares),
		})
	}
	k.stalled = 0
	return stopping, nil
}

// agree tells, the same on all ranks, whether one of them was told to stop or rank 0 has to, and goes on with the save beside the training. A GPU
// applies the update meanwhile.
func (k *rank) agree(ctx, stop context.Context) (stopping bool, err error) {
	flags := make([]float64, 4)
	if stop.Err() != nil {
		flags[0] = 1
	}
	flags[1], flags[2] = k.saver.status(0)
	if k.unwritten() != nil {
		flags[3] = 1
	}
	if err = k.comm.Sum(ctx, flags); err == nil {
		err = k.advance(ctx, flags[1], flags[2])
	}
	k.unheard = flags[3] > 0
	return flags[0] > 0 || k.unheard, err
}

// hasLoss reports whether the rank's loss counts: on the last stage, one rank of those that have the same tokens.
func (k *rank) hasLoss() bool {
	at := k.job.Where(k.comm.Rank())
	return at.PP == k.lastPP() && k.job.Mesh.Index(at.Coord, placement.TP) == 0
}

// lastPP is the pp rank of the last stage.
func (k *rank) lastPP() int { return k.job.StageRank[len(k.job.StageRank)-1] }

// exchangeTied adds up the two gradients of a tied head when the first and the last stage each hold its weight.
func (k *rank) exchangeTied(ctx context.Context) error {
	first, last := k.job.StageRank[0], k.lastPP()
	me := k.job.Where(k.comm.Rank()).PP
	if !k.job.Manifest.Model.Config.Tied || first == last || me != first && me != last {
		return nil
	}
	peer := k.comm.Rank() + (first+last-2*me)*k.job.Mesh.World() // at the same place of the other stage's mesh
	return k.machine.exchange(k.job.Params[0].FQN, func(mine, theirs []float32) error {
		if err := k.comm.Send(ctx, peer, "tied", floatBytes(mine)); err != nil {
			return err
		}
		return k.comm.Recv(ctx, peer, "tied", floatBytes(theirs))
	})
}

// finite stops the run, on every rank, when no weight was changed because the loss or the norm is not finite.
func (k *rank) finite(ctx context.Context, step int, loss, norm float64) error {
	if isFinite(loss) && isFinite(norm) {
		return nil
	}
	what, err := k.firstBad(ctx, aParameter, aGradient)
	if err != nil {
		return err
	}
	if err := k.settle(ctx, ended); err != nil { // what is being saved is sound
		k.Log.Error(err.Error())
	}
	why := "no parameter or gradient is"
	if what != "" {
		why = "the first bad one is " + what
	}
	return exit.No.Errorf("step %d: loss %v, grad_norm %v: not finite (%s); weights are unchanged and nothing was saved for this step", step, loss, norm, why)
}

// firstBad names the first tensor that is not finite, by kind, then by its place in the model, on whatever rank; "" if
// there is none. All ranks call it together.
func (k *rank) firstBad(ctx context.Context, kinds ...tensorKind) (string, error) {
	n := len(k.job.Params)
	where := make([]float64, len(kinds)*n)
	for i, kind := range kinds {
		squares, err := k.machine.squares(kind)
		if err != nil {
			return "", err
		}
		for j, h := range k.held {
			if h.First && !isFinite(squares[j]) {
				where[i*n+h.Index] = 1
			}
		}
	}
	if err := k.comm.Sum(ctx, where); err != nil {
		return "", err
	}
	for i, bad := range where {
		if bad > 0 {
			return fmt.Sprintf("the %v of %s", kinds[i/n], k.job.Params[i%n].FQN), nil
		}
	}
	return "", nil
}

func isFinite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }

func (k *rank) gradNorms(squares []float64) map[string]float64 {
	if !k.GradNorms {
		return nil
	}
	out := map[string]float64{}
	for i, s := range squares {
		out[k.job.Params[i].FQN] = math.Sqrt(s)
	}
	return out
}
