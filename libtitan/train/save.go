package train

import (
	"context"
	"errors"
	"fmt"
	"time"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// checkSaving refuses wishes about saving where nothing is saved.
func checkSaving(c *manifest.Checkpoint) error {
	if c == nil || c.Folder != "" || c.LoadOnly {
		return nil
	}
	for _, wish := range []struct {
		name  string
		given bool
	}{
		{"interval", c.Interval > 0}, {"enable_first_step_checkpoint", c.FirstStep}, {"keep_latest_k", c.KeepLatestK > 0},
		{"async_mode", c.Async()}, {"last_save_model_only", c.LastSaveModelOnly},
	} {
		if wish.given {
			return exit.Usage.Errorf("checkpoint.%s: there is no folder to save in: name one with --checkpoint-dir, or save nothing with --load-only", wish.name)
		}
	}
	return nil
}

// saves reports whether the run saves at all.
func (r *run) saves() bool {
	c := r.job.Manifest.Checkpoint
	return c != nil && c.Folder != "" && !c.LoadOnly
}

// due reports whether the step just done is saved: every interval, the first if that is asked for, the last always.
func (k *rank) due(last bool) bool {
	c, step := k.job.Manifest.Checkpoint, k.pos.Step
	return k.saves() && (last || c.FirstStep && step == 1 || c.Interval > 0 && step%c.Interval == 0)
}

// save writes the state of all ranks as one folder: while they wait, or from a copy, beside the next steps. The last
// save is never left to go on by itself. A save waits for the one before it.
func (k *rank) save(ctx context.Context, last bool) error {
	if err := k.savesEnded(ctx); err != nil {
		return err
	}
	if err := k.worthSaving(ctx); err != nil {
		return err
	}
	if err := k.machine.fetch(); err != nil {
		return err
	}
	k.saver.from = k.state
	beside := k.job.Manifest.Checkpoint.Async() && !last
	if beside {
		k.stage()
	}
	if err := k.comm.Barrier(ctx); err != nil { // all have staged
		return err
	}
	if k.comm.Rank() == 0 {
		write, err := k.writing(ctx)
		if err != nil {
			return err
		}
		k.saver.start(write)
	} else if k.apart() {
		if err := k.sendState(ctx); err != nil {
			return err
		}
	}
	if beside {
		return nil
	}
	return k.savesEnded(ctx)
}

// savesEnded waits, on all ranks together, until no write is under way. A disk may take its time, a rank may not: they
// meet again and again meanwhile. All learn of a write that failed.
func (k *rank) savesEnded(ctx context.Context) error {
	for {
		status := make([]float64, 2) // how many write, and how many failed
		switch {
		case !k.saver.ended(min(time.Second, k.stepTimeout()/4)):
			status[0] = 1
		case k.saver.err != nil:
			status[1] = 1
		}
		if err := k.comm.Sum(ctx, status); err != nil {
			return err
		}
		switch {
		case status[1] > 0:
			return k.saveError()
		case status[0] == 0:
			return nil
		}
	}
}

// saveError is why rank 0 could not write, as far as this process knows.
func (k *rank) saveError() error {
	if writer := k.peers[0]; writer != nil {
		return writer.saver.err
	}
	return exit.Lost.Errorf("rank 0 could not save its checkpoint: its own message says why")
}

// worthSaving stops the run where a tensor that would be saved is not finite: a loss can hide that, of a row that no
// token took, and every save of it would push out an older one that is sound. All ranks call it together.
func (k *rank) worthSaving(ctx context.Context) error {
	what, err := k.firstBad(ctx, aParameter, anAverage, aSquaredAverage)
	if err == nil && what != "" {
		err = exit.No.Errorf("step %d: %s is not finite: nothing was saved for this step", k.pos.Step, what)
	}
	return err
}

// writing gathers what the ranks save, on rank 0, and returns what writes it.
func (k *rank) writing(ctx context.Context) (func() error, error) {
	peers := make([]*rank, len(k.peers))
	for i, peer := range k.peers {
		var err error
		if peer == nil {
			peer, err = k.recvState(ctx, i)
		}
		if err != nil {
			return nil, err
		}
		peers[i] = peer
	}
	c, step := k.job.Manifest.Checkpoint, k.pos.Step
	dir, write := checkpoint.StepDir(c.Folder, step), checkpoint.Write
	state, what := k.fullState(peers), ""
	if c.LastSaveModelOnly && step == k.job.Manifest.Training.Steps {
		d := exportDType(c)
		state, what = k.modelState(peers, d), fmt.Sprintf(": the model alone, in %v", d)
		if c.LastSaveInHF {
			write, what = k.writeHF, what+" and Hugging Face's form"
		}
	}
	ctx = context.WithoutCancel(ctx) // a run that ends lets its save end
	return func() error {
		if err := checkpoint.Sweep(c.Folder); err != nil {
			k.Log.Warn(err.Error())
		}
		if err := write(ctx, dir, state, checkpoint.WriteOptions{Replace: true}); err != nil {
			return fmt.Errorf("checkpoint: step %d: %w", step, err)
		}
		k.Log.Info(fmt.Sprintf("saved %s%s", dir, what))
		if err := checkpoint.Prune(c.Folder, step, c.KeepLatestK); err != nil {
			k.Log.Warn(err.Error())
		}
		return nil
	}, nil
}

func (k *rank) writeHF(ctx context.Context, dir string, s checkpoint.State, o checkpoint.WriteOptions) error {
	return checkpoint.WriteHuggingFace(ctx, dir, s, k.job.Manifest.Model.Config, o)
}

// endSave waits for the write that is under way when the run ends, by err or without one.
func (k *rank) endSave(err error) error {
	saved := k.saver.wait()
	if err == nil {
		return saved
	}
	if saved != nil && !errors.Is(err, saved) {
		k.Log.Error(saved.Error())
	}
	return err
}

// savedHint tells where an interrupted run can go on.
func (k *rank) savedHint() string {
	if !k.saves() {
		return ", not saved: there is no checkpoint folder"
	}
	return fmt.Sprintf(", saved in %s: the same command goes on from there", checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step))
}
