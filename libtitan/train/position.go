package train

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"strings"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/optim"
)

// position is how far a run has come.
type position struct {
	Step    int   // optimizer steps done
	Tokens  int64 // seen, all labels counted
	Rows    int64 // of data consumed: the one cursor, whatever the mesh
	Updates int   // that the moments have seen: fewer than Step if they began afresh
	Epoch   int   // of the learning rate's schedule: likewise
}

// after is the position one step on.
func (p position) after(b batch) position {
	return position{p.Step + 1, p.Tokens + int64(b.valid), p.Rows + int64(b.rows), p.Updates + 1, p.Epoch + 1}
}

// The names of what a checkpoint holds beside the model: torchtitan's, and our own for the position in the data.
const (
	stepKey        = "train_state.step"
	tokensKey      = "train_state.ntokens_seen"
	epochKey       = "lr_scheduler.last_epoch"
	rowsKey        = "dataloader.rows"
	fingerprintKey = "dataloader.fingerprint"
	seedKey        = "dataloader.seed"
	sequentialKey  = "dataloader.sequential"
)

// readPosition reads what is not excluded of the place where a checkpoint was left.
func (r *run) readPosition(c *manifest.Checkpoint, dir string, step int) error {
	number := func(part, key string, absent int64) int64 {
		if !r.evaluating && c.Excludes(part) {
			return 0
		}
		if n, ok := r.object(key).(int64); ok {
			return n
		}
		r.Log.Warn(fmt.Sprintf("%s: no %s in it: going on with %d", dir, key, absent))
		return absent
	}
	t, p := r.job.Manifest.Training, &r.left
	p.Step = int(number("train_state", stepKey, int64(step)))
	p.Rows = number("dataloader", rowsKey, int64(step)*int64(t.GlobalBatchSize))
	p.Tokens = number("train_state", tokensKey, p.Rows*int64(t.SeqLen))
	p.Epoch = int(number("lr_scheduler", epochKey, int64(step)))
	if p.Step < 0 || p.Rows < 0 || p.Tokens < 0 || p.Epoch < 0 {
		return exit.Input.Errorf("checkpoint %s: step %d, %d rows, %d tokens, epoch %d: a negative position", dir, p.Step, p.Rows, p.Tokens, p.Epoch)
	}
	if !r.resume {
		return nil
	}
	var err error
	p.Updates, err = r.readUpdates(dir, step)
	return err
}

// readUpdates is AdamW's count, which stands beside the moments of every parameter and must be the same for all.
func (r *run) readUpdates(dir string, absent int) (int, error) {
	first := ""
	var all float64
	for _, p := range r.job.Params {
		key := strings.TrimSuffix(r.stored[moment(p.FQN, "exp_avg")], "exp_avg") + "step"
		n, err := r.scalar(key)
		if err != nil {
			return 0, err
		}
		switch {
		case n < 0:
			r.Log.Warn(fmt.Sprintf("%s: no %s in it: going on with %d", dir, key, absent))
			return absent, nil
		case first == "":
			first, all = key, n
		case n != all:
			return 0, exit.Input.Errorf("checkpoint %s: %s is %v and %s %v: parameters that were not updated together are not known here", dir, first, all, key, n)
		}
	}
	return int(all), nil
}

// scalar is a number of the checkpoint that is a tensor of one element or a Python number; negative if there is none.
func (r *run) scalar(key string) (float64, error) {
	item, ok := r.item(key)
	if ok && item.Kind == checkpoint.KindTensor && item.DType == dtype.Float32 && item.Bytes == 4 {
		x := make([]float32, 1)
		err := r.from.ReadRegion(key, make([]int64, len(item.Shape)), item.Shape, floatBytes(x))
		return float64(x[0]), err
	}
	switch n := r.object(key).(type) {
	case int64:
		return float64(n), nil
	case float64:
		return n, nil
	}
	return -1, nil
}

// object is a Python value of the checkpoint, nil if it has none of the name.
func (r *run) object(key string) any {
	v, err := r.from.Object(key)
	if err != nil {
		return nil
	}
	return v
}

// checkResume refuses to go on with other data, or in another order, than the checkpoint's position counts in.
func (r *run) checkResume() error {
	if r.FreshData {
		r.left.Rows = 0
	}
	if r.left.Rows == 0 {
		return nil
	}
	if was, ok := r.object(fingerprintKey).(string); ok && was != r.train.Fingerprint() {
		return exit.Input.Errorf("data: not the files, tokenizer or seq_len that the checkpoint was trained on, so its position of %d rows means nothing: give the same, or --fresh-data to begin this data at its first row", r.left.Rows)
	}
	if was, ok := r.object(seedKey).(int64); ok && uint64(was) != r.job.Manifest.Training.Seed {
		return exit.Input.Errorf("training.seed: %d, but the checkpoint's data was shuffled by seed %d: give that, or --fresh-data to begin the data at its first row", r.job.Manifest.Training.Seed, uint64(was))
	}
	if was, ok := r.object(sequentialKey).(bool); ok && was != r.job.Manifest.Data.Sequential {
		return exit.Input.Errorf("data.sequential: %v, but the checkpoint's rows were taken with %v: give that, or --fresh-data to begin the data at its first row", !was, was)
	}
	return nil
}

// compareRate says so where the learning rate does not go on from the checkpoint's: the schedule ends at another step.
func (r *run) compareRate(s *optim.Schedule) {
	if r.from == nil || r.left.Step == 0 || r.left.Epoch != r.left.Step {
		return
	}
	list, _ := r.object("lr_scheduler._last_lr").([]any)
	if len(list) == 0 {
		return
	}
	was, ok := list[0].(float64)
	now := r.job.Manifest.Optimizer.LR * s.Factor(r.left.Epoch)
	if ok && math.Abs(was-now) > 1e-6*math.Max(was, now) {
		level := slog.LevelWarn
		if was == 0 { // its schedule had ended: whoever goes on wants another
			level = slog.LevelInfo
		}
		r.Log.Log(context.Background(), level, fmt.Sprintf("the learning rate goes on at %.3g, where the checkpoint would go on at %.3g: the schedule is another (lr_scheduler.total_steps fixes its end beyond --steps)", now, was))
	}
}
