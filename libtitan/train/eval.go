package train

import (
	"context"
	"math"

	"titan/libtitan/comm"
	"titan/libtitan/exec"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// evaluator measures the loss on a dataset, forward only.
type evaluator struct {
	*rank
	data    *dataset
	mem     *exec.Memory
	runner  *exec.Runner
	batches int
}

// newEvaluator reads steps batches of the job's microbatches, or one epoch if steps is 0; never more than that.
func (k *rank) newEvaluator(d *dataset, steps int) (*evaluator, error) {
	prog, err := k.job.EvalProgram(k.comm.Rank(), k.job.NumMicrobatches)
	if err != nil {
		return nil, err
	}
	if k.gpu != nil {
		prog.KeepCopies()
	}
	e := &evaluator{rank: k, data: d}
	perBatch := int64(k.job.Rows * k.job.NumMicrobatches * k.job.DP)
	e.batches = int(max(1, d.Rows()/perBatch))
	if steps > 0 {
		e.batches = min(e.batches, steps)
	}
	e.mem, e.runner, err = k.machine.load(prog, k.job.NumMicrobatches, k.microbatchTokens(), k.comm)
	return e, err
}

// run is the mean loss of a label over the batches, the same on every rank.
func (e *evaluator) run(ctx context.Context) (loss float64, tokens int64, err error) {
	var sum float64
	for i := range e.batches {
		b, err := e.fill(ctx, e.data, e.mem, int64(i*e.job.Rows*e.job.NumMicrobatches*e.job.DP))
		if err != nil {
			return 0, 0, err
		}
		if err := e.runner.Run(ctx); err != nil {
			return 0, 0, err
		}
		tokens += int64(b.valid)
		if e.hasLoss() {
			for _, l := range e.mem.Loss {
				sum += float64(l)
			}
		}
	}
	total := []float64{sum}
	if err := e.comm.Sum(ctx, total); err != nil {
		return 0, 0, err
	}
	if tokens == 0 {
		return 0, 0, nil
	}
	return total[0] / float64(tokens), tokens, nil
}

// Evaluation is what Eval found.
type Evaluation struct {
	Step   int     `json:"step"`   // of the checkpoint
	Loss   float64 `json:"loss"`   // mean over the labels
	Tokens int64   `json:"tokens"` // labels
}

// Eval measures the checkpoint that Run would start from on the manifest's data: steps batches, or one
// epoch if steps is 0.
func Eval(ctx context.Context, m *manifest.Manifest, steps int, o Options) (Evaluation, error) {
	r, err := open(m, o, true)
	if err != nil {
		return Evaluation{}, err
	}
	defer r.close()
	if c := m.Checkpoint; r.from == nil || c.Folder != "" && !r.found {
		return Evaluation{}, exit.Input.Errorf("nothing to evaluate: no complete checkpoint under --checkpoint-dir %q; for weights alone give --checkpoint-dir '' and --initial-load-path DIR", c.Folder)
	}
	if r.validation, err = r.openData(ctx, m.Data.Paths, m.Data.Exclude, !m.Data.Sequential); err != nil {
		return Evaluation{}, err
	}
	out := Evaluation{Step: r.left.Step}
	err = r.start(ctx, func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, false)
		if err != nil {
			return err
		}
		e, err := k.newEvaluator(r.validation, steps)
		if err != nil {
			return err
		}
		loss, tokens, err := e.run(ctx)
		if c.Rank() == 0 {
			out.Loss, out.Tokens = loss, tokens
		}
		return first(err, k.machine.close())
	})
	if err == nil && (math.IsNaN(out.Loss) || math.IsInf(out.Loss, 0)) {
		err = exit.No.Errorf("the loss of step %d is %v: not finite", out.Step, out.Loss)
	}
	return out, err
}
