package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unsafe"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
)

// find decides where a run starts: at the step asked for or the newest complete one in the folder, else at the
// weights of initial_load_path, else (a nil reader) at the seed. Only a step of the folder sets the position.
func (r *run) find(c *manifest.Checkpoint) (*checkpoint.Reader, position, error) {
	if c == nil {
		return nil, position{}, nil
	}
	dir, step, err := r.findStep(c)
	if err != nil {
		return nil, position{}, err
	}
	switch {
	case dir != "" && c.InitialLoadPath != "":
		r.Log.Info(fmt.Sprintf("%s is there, so initial_load_path %s is ignored", dir, c.InitialLoadPath))
	case dir == "" && c.InitialLoadPath == "":
		r.Log.Info("no checkpoint: parameters start from the seed")
		return nil, position{}, nil
	case dir == "":
		dir = c.InitialLoadPath
	}
	reader, err := checkpoint.Open(dir)
	if errors.Is(err, fs.ErrNotExist) {
		err = exit.Input.Errorf("checkpoint %s: there is none", dir)
	}
	if err != nil {
		return nil, position{}, err
	}
	if err := r.fitsModel(reader, dir, step > 0 && !r.evaluating); err != nil {
		reader.Close()
		return nil, position{}, err
	}
	if step == 0 {
		r.Log.Info(fmt.Sprintf("%s: weights only (step 0)", dir))
		return reader, position{}, nil
	}
	pos, err := r.readPosition(reader, dir, step)
	if err == nil {
		r.Log.Info(fmt.Sprintf("%s: its state is loaded, step %d is done", dir, pos.Step))
	}
	return reader, pos, err
}

// findStep is the step-N folder to resume from, "" if there is none.
func (r *run) findStep(c *manifest.Checkpoint) (dir string, step int, err error) {
	if c.Folder == "" {
		if c.LoadStep != nil {
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
	if newest, newErr := checkpoint.FindStep(c.Folder, checkpoint.Latest); err == nil && newErr == nil && newest.Number > s.Number {
		r.Log.Warn(fmt.Sprintf("%s: going on from step %d replaces later ones, up to step %d, as it gets there", c.Folder, s.Number, newest.Number))
	}
	return s.Dir, s.Number, err
}

// fitsModel compares a checkpoint with the whole model: what is missing or of another shape, and what the model has
// no place for, which would be lost without a word.
func (r *run) fitsModel(c *checkpoint.Reader, dir string, resume bool) error {
	var want []checkpoint.Want
	for _, p := range r.job.Params {
		for _, name := range wanted(p.FQN, resume) {
			want = append(want, checkpoint.Want{FQN: name, DType: dtype.Float32, Shape: p.Shape})
		}
	}
	stored, notes, err := c.Resolve(want)
	if err != nil {
		return err
	}
	for _, n := range notes {
		r.Log.Info(n)
	}
	used := map[string]bool{}
	for _, name := range stored {
		used[name] = true
	}
	var extra []string
	for _, it := range c.Items() {
		if it.Kind == checkpoint.KindTensor && !used[it.FQN] && !beside.MatchString(it.FQN) {
			extra = append(extra, it.FQN)
		}
	}
	if len(extra) > 0 {
		return exit.Input.Errorf("checkpoint %s: it holds %d tensors that the model has no place for: %s: another model's?", dir, len(extra), strings.Join(extra[:min(3, len(extra))], ", "))
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

// The names of what a checkpoint holds beside the model: torchtitan's, and our own for the position in the data.
const (
	stepKey        = "train_state.step"
	tokensKey      = "train_state.ntokens_seen"
	rowsKey        = "dataloader.rows"
	fingerprintKey = "dataloader.fingerprint"
	seedKey        = "dataloader.seed"
	sequentialKey  = "dataloader.sequential"
)

func (r *run) readPosition(c *checkpoint.Reader, dir string, step int) (position, error) {
	number := func(key string, absent int64) int64 {
		if n, ok := r.object(c, key).(int64); ok {
			return n
		}
		r.Log.Warn(fmt.Sprintf("%s: no %s in it: going on with %d", dir, key, absent))
		return absent
	}
	pos := position{Step: int(number(stepKey, int64(step)))}
	t := r.job.Manifest.Training
	pos.Rows = number(rowsKey, int64(pos.Step)*int64(t.GlobalBatchSize))
	pos.Tokens = number(tokensKey, pos.Rows*int64(t.SeqLen))
	if pos.Step < 0 || pos.Rows < 0 || pos.Tokens < 0 {
		return pos, exit.Input.Errorf("checkpoint %s: step %d, %d rows, %d tokens: a negative position", dir, pos.Step, pos.Rows, pos.Tokens)
	}
	return pos, nil
}

// object is a Python value of a checkpoint, nil if it has none of the name.
func (r *run) object(c *checkpoint.Reader, key string) any {
	v, err := c.Object(key)
	if err != nil {
		return nil
	}
	return v
}

// checkResume refuses to go on with other data, or in another order, than the checkpoint's position counts in.
func (r *run) checkResume() error {
	if r.from == nil || r.left.Step == 0 {
		return nil
	}
	if r.FreshData {
		r.left.Rows = 0
		return nil
	}
	if was, ok := r.object(r.from, fingerprintKey).(string); ok && was != r.train.Fingerprint() {
		return exit.Input.Errorf("data: not the files, tokenizer or seq_len that the checkpoint was trained on, so its position of %d rows means nothing: give the same, or --fresh-data to begin this data at its first row", r.left.Rows)
	}
	if was, ok := r.object(r.from, seedKey).(int64); ok && uint64(was) != r.job.Manifest.Training.Seed {
		return exit.Input.Errorf("training.seed: %d, but the checkpoint's data was shuffled by seed %d: give that, or --fresh-data to begin the data at its first row", r.job.Manifest.Training.Seed, uint64(was))
	}
	if was, ok := r.object(r.from, sequentialKey).(bool); ok && was != r.job.Manifest.Data.Sequential {
		return exit.Input.Errorf("data.sequential: %v, but the checkpoint's rows were taken with %v: give that, or --fresh-data to begin the data at its first row", !was, was)
	}
	return nil
}

// loadState makes the rank's parameters, and for training their gradients and moments.
func (k *rank) loadState(training bool) error {
	k.state = newState()
	resume := training && k.left.Step > 0
	var want []checkpoint.Want
	for _, h := range k.held {
		for _, n := range wanted(h.Param.FQN, resume) {
			want = append(want, checkpoint.Want{FQN: n, DType: dtype.Float32, Shape: h.Param.Shape})
		}
	}
	var names map[string]string
	if k.from != nil {
		var err error
		if names, _, err = k.from.Resolve(want); err != nil {
			return err
		}
	}
	for _, h := range k.held {
		fqn, n := h.Param.FQN, h.NumElements()
		k.state.params[fqn] = make([]float32, n)
		if k.from == nil {
			k.fromSeed(h)
		} else if err := k.read(names[fqn], h, k.state.params[fqn]); err != nil {
			return err
		}
		if !training {
			continue
		}
		k.state.grads[fqn] = make([]float32, n)
		for name, list := range map[string]map[string][]float32{"exp_avg": k.state.m, "exp_avg_sq": k.state.v} {
			list[fqn] = make([]float32, n)
			if !resume {
				continue
			}
			if err := k.read(names[moment(fqn, name)], h, list[fqn]); err != nil {
				return err
			}
		}
	}
	return nil
}

// fromSeed makes what a part of a parameter starts from where there is no file: the values that seedinit would write.
// A part is whole rows, or a range of each row.
func (k *rank) fromSeed(h parallel.Held) {
	dst, fill := k.state.params[h.Param.FQN], Initial(h.Param, k.job.Manifest.Training.Seed)
	width, stride, first := h.NumElements(), int64(0), int64(0)
	rows := int64(1)
	for d, size := range h.Sizes {
		first = first*h.Param.Shape[d] + h.Offsets[d]
		if d == 1 && size < h.Param.Shape[1] {
			rows, width, stride = h.Sizes[0], size, h.Param.Shape[1]
		}
	}
	for r := range rows {
		row := dst[r*width:][:width]
		k.engine.For(len(row), 1<<16, func(lo, hi int) { fill(row[lo:hi], first+r*stride+int64(lo)) })
	}
}

func moment(fqn, name string) string { return "optimizer.state." + fqn + "." + name }

// read fills dst from a tensor of the checkpoint; bfloat16 is widened.
func (k *rank) read(name string, h parallel.Held, dst []float32) error {
	if len(dst) == 0 {
		return nil
	}
	item, ok := k.from.Item(name)
	if !ok {
		return exit.Input.Errorf("checkpoint: %s: not in it", name)
	}
	switch item.DType {
	case dtype.Float32:
		return k.from.ReadRegion(name, h.Offsets, h.Sizes, floatBytes(dst))
	case dtype.BFloat16:
		narrow := make([]uint16, len(dst))
		raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(narrow))), 2*len(narrow))
		if err := k.from.ReadRegion(name, h.Offsets, h.Sizes, raw); err != nil {
			return err
		}
		dtype.WidenBF16(dst, narrow)
		return nil
	}
	return exit.Input.Errorf("checkpoint: %s: it is %v: training starts from float32 or bfloat16", name, item.DType)
}

// floatBytes is the memory of x.
func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
