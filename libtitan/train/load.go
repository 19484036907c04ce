package train

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// find decides where the run starts: at the step asked for or the newest complete one in the folder, else at the
// weights of initial_load_path, else at the seed. Only a step of the folder sets the position.
func (r *run) find(c *manifest.Checkpoint) error {
	if c == nil {
		return nil
	}
	dir, step, err := r.findStep(c)
	if err != nil {
		return err
	}
	r.found = dir != ""
	switch {
	case dir != "" && c.InitialLoadPath != "":
		r.Log.Info(fmt.Sprintf("%s is there, so initial_load_path %s is ignored", dir, c.InitialLoadPath))
	case dir == "" && c.InitialLoadPath == "":
		r.Log.Info("no checkpoint: parameters start from the seed")
		return nil
	case dir == "":
		dir = c.InitialLoadPath
	}
	var theirs bool
	note := func(s string) { r.Log.Info(fmt.Sprintf("%s: %s", dir, s)) }
	r.from, theirs, err = checkpoint.OpenModel(dir, r.job.Manifest.Model.Config, note)
	if err == nil && !r.found && c.InitialLoadInHF && !theirs {
		err = exit.Input.Errorf("checkpoint %s: it has not Hugging Face's form, as checkpoint.initial_load_in_hf wants it: leave that out", dir)
	}
	if err == nil {
		err = r.begin(c, dir, step)
	}
	if err != nil {
		r.close()
	}
	return err
}

// begin decides what is taken from the checkpoint in dir: of step 0 and of initial_load_path the weights alone, of
// another step all that is not excluded.
func (r *run) begin(c *manifest.Checkpoint, dir string, step int) error {
	bare := !r.hasOptimizer()
	r.resume = step > 0 && !bare && !r.evaluating && !c.Excludes("optimizer")
	if err := r.fitsModel(dir); err != nil {
		return err
	}
	switch {
	case step == 0:
		r.Log.Info(fmt.Sprintf("%s: weights only (step 0)", dir))
		return nil
	case bare && r.evaluating, bare && step >= r.job.Manifest.Training.Steps:
		r.left.Step = step
		return nil
	case bare && !c.Excludes("optimizer"):
		return exit.Input.Errorf("checkpoint %s: it holds the model alone, so no run can go on from it: begin another from its weights with --initial-load-path %s --checkpoint-dir OTHER, or go on from an earlier step with --load-step N", dir, dir)
	}
	if err := r.readPosition(c, dir, step); err != nil {
		return err
	}
	what := "its state"
	if len(c.ExcludeFromLoading) > 0 && !r.evaluating {
		what = fmt.Sprintf("its state without %s", strings.Join(c.ExcludeFromLoading, ", "))
	}
	r.Log.Info(fmt.Sprintf("%s: %s is loaded, step %d is done", dir, what, r.left.Step))
	return nil
}

// item finds an entry of the checkpoint by name.
func (r *run) item(fqn string) (checkpoint.Item, bool) {
	items := r.from.Items()
	i, ok := slices.BinarySearchFunc(items, fqn, func(it checkpoint.Item, fqn string) int { return strings.Compare(it.FQN, fqn) })
	if !ok {
		return checkpoint.Item{}, false
	}
	return items[i], true
}

// hasOptimizer reports whether the checkpoint holds an optimizer's state to go on from.
func (r *run) hasOptimizer() bool {
	return slices.ContainsFunc(r.from.Items(), func(it checkpoint.Item) bool {
		return it.Kind == checkpoint.KindTensor && strings.HasPrefix(it.FQN, "optimizer.")
	})
}

// findStep is the step-N folder to resume from, "" if there is none.
func (r *run) findStep(c *manifest.Checkpoint) (dir string, step int, err error) {
	if c.Folder == "" {
		if c.LoadStep != nil && *c.LoadStep >= 0 {
			return "", 0, exit.Usage.Errorf("--load-step %d: of which folder? name it with --checkpoint-dir", *c.LoadStep)
		}
		return "", 0, nil
	}
	if _, err := os.Stat(filepath.Join(c.Folder, ".metadata")); err == nil {
		return "", 0, exit.Input.Errorf("checkpoint %s: it is a checkpoint itself: name the folder of the step-N folders, %s", c.Folder, filepath.Dir(c.Folder))
	}
	want := checkpoint.Latest
	if c.LoadStep != nil {
		want = *c.LoadStep
	}
	s, err := checkpoint.FindStep(c.Folder, want)
	for _, w := range s.Warnings {
		r.Log.Warn(w)
	}
	if errors.Is(err, checkpoint.ErrNoStep) {
		if len(s.Warnings) > 0 {
			return "", 0, exit.Input.Errorf("checkpoint %s: its only steps are incomplete: remove them to start afresh, or choose another folder", c.Folder)
		}
		return "", 0, nil
	}
	if cause(err) != err {
		err = exit.Input.Errorf("checkpoint.folder %s: %w: choose another with --checkpoint-dir", c.Folder, cause(err))
	}
	if r.evaluating || !r.saves() {
		return s.Dir, s.Number, err
	}
	if newest, newErr := checkpoint.FindStep(c.Folder, checkpoint.Latest); err == nil && newErr == nil && newest.Number > s.Number {
		r.Log.Warn(fmt.Sprintf("%s: going on from step %d replaces later ones, up to step %d, as it gets there", c.Folder, s.Number, newest.Number))
	}
	return s.Dir, s.Number, err
}

// fitsModel compares a checkpoint with the whole model: what is missing or of another shape, and what the model has
// no place for, which would be lost without a word.
func (r *run) fitsModel(dir string) error {
	var want []checkpoint.Want
	for _, p := range r.job.Params {
		for _, name := range wanted(p.FQN, r.resume) {
			want = append(want, checkpoint.Want{FQN: name, DType: dtype.Float32, Shape: p.Shape})
		}
	}
	var notes []string
	var err error
	fix := "name weights of this model, or plan for the model that they are of"
	if r.found {
		fix = "choose another --checkpoint-dir, or go on with the manifest that it was trained with"
	}
	if r.stored, notes, err = checkpoint.Resolve(r.from, want); err != nil {
		return fmt.Errorf("%w: %s", err, fix)
	}
	for _, n := range notes {
		r.Log.Info(n)
	}
	used := map[string]bool{}
	for _, name := range r.stored {
		used[name] = true
	}
	var extra []string
	for _, it := range r.from.Items() {
		if it.Kind == checkpoint.KindTensor && !used[it.FQN] && !beside.MatchString(it.FQN) {
			extra = append(extra, it.FQN)
		}
	}
	if len(extra) > 0 {
		return exit.Input.Errorf("checkpoint %s: it holds %d tensors that the model has no place for: %s: %s", dir, len(extra), strings.Join(extra[:min(3, len(extra))], ", "), fix)
	}
	return nil
}

// beside matches the names of tensors that are no parameters.
var beside = regexp.MustCompile(`^(optimizer|optim|lr_scheduler|train_state|dataloader)\.|(^|\.)freqs_cis$`)

// wanted lists the tensors that belong to a parameter.
func wanted(fqn string, resume bool) []string {
	if !resume {
		return []string{fqn}
	}
	return []string{fqn, moment(fqn, "exp_avg"), moment(fqn, "exp_avg_sq")}
}
