package train

import (
	"context"
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
	defer k.stalls(time.Now())
	if err := k.settle(ctx, ended); err != nil {
		return err
	}
	if err := k.worthSaving(ctx); err != nil {
		return err
	}
	what := k.saving(last)
	k.begin(ctx, what)
	if what.mode != manifest.AsyncOff {
		return k.settle(ctx, writing)
	}
	return k.settle(ctx, ended)
}

// stalls counts that training waited for a save since began.
func (k *rank) stalls(began time.Time) { k.stalled += time.Since(began) }

// copied waits until the state of a save beside the training is copied: it may change then.
func (k *rank) copied() error {
	if k.saver.phase != writing {
		return nil
	}
	defer k.stalls(time.Now())
	return k.saver.taken.wait()
}

// worthSaving stops the run where a tensor that would be saved is not finite: a loss can hide that, of a row that no
// token took, and every save of it would push out an older one that is sound. All ranks call it together.
func (k *rank) worthSaving(ctx context.Context) error {
	what, err := k.firstBad(ctx, stateKinds(true)...)
	if err == nil && what != "" {
		err = exit.No.Errorf("step %d: %s is not finite: nothing was saved for this step", k.pos.Step, what)
	}
	return err
}

// unsaved is why a run does not save.
func (r *run) unsaved() string {
	if c := r.job.Manifest.Checkpoint; c != nil && c.LoadOnly {
		return "the run is under --load-only"
	}
	return "there is no checkpoint folder"
}

// savedHint tells where an interrupted run can go on.
func (k *rank) savedHint() string {
	if !k.saves() {
		return ", not saved: " + k.unsaved()
	}
	return fmt.Sprintf(", saved in %s: the same pipeline goes on from there", checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step))
}
