package train

import (
	"context"
	"fmt"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// due reports whether the step just done is saved: every interval, and the last one always.
func (k *rank) due(last bool) bool {
	c := k.job.Manifest.Checkpoint
	return c != nil && c.Folder != "" && (last || c.Interval > 0 && k.pos.Step%c.Interval == 0)
}

// save writes the state of all ranks as one folder, while they wait.
func (k *rank) save(ctx context.Context) error {
	if err := k.comm.Barrier(ctx); err != nil {
		return err
	}
	if k.comm.Rank() == 0 {
		var s checkpoint.State
		for file, peer := range k.peers {
			peer.addTensors(&s, file)
		}
		k.addObjects(&s)
		dir := checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step)
		if err := checkpoint.Write(ctx, dir, s, checkpoint.WriteOptions{Replace: true}); err != nil {
			return fmt.Errorf("checkpoint: step %d: %w", k.pos.Step, err)
		}
		k.Log.Info(fmt.Sprintf("saved %s", dir))
	}
	return k.comm.Barrier(ctx)
}

// savedHint tells where an interrupted run can go on.
func (k *rank) savedHint() string {
	if !k.due(true) {
		return ", not saved: there is no checkpoint folder"
	}
	return fmt.Sprintf(", saved in %s: the same command goes on from there", checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step))
}

// addTensors adds the parameters that the rank owns and their optimizer state.
func (k *rank) addTensors(s *checkpoint.State, file int) {
	add := func(fqn string, path []any, shape []int64, x []float32) {
		chunks := checkpoint.Whole(shape, func(dst []byte, off int64) error {
			copy(dst, floatBytes(x)[off:])
			return nil
		})
		chunks[0].File = file
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: fqn, Path: path, DType: dtype.Float32, Shape: shape, Chunks: chunks})
	}
	for i, p := range k.params {
		if !k.owned[i] {
			continue
		}
		add(p.FQN, nil, p.Shape, k.state.params[p.FQN])
		for _, m := range []struct {
			name  string
			shape []int64
			x     []float32
		}{
			{"step", []int64{}, []float32{float32(k.pos.Step)}},
			{"exp_avg", p.Shape, k.state.m[p.FQN]},
			{"exp_avg_sq", p.Shape, k.state.v[p.FQN]},
		} {
			add(moment(p.FQN, m.name), []any{"optimizer", "state." + p.FQN + "." + m.name}, m.shape, m.x)
		}
	}
}

// addObjects adds the Python values that torchtitan keeps beside tensors, and the position in the data.
func (k *rank) addObjects(s *checkpoint.State) {
	add := func(group, key string, value any) {
		s.Objects = append(s.Objects, checkpoint.Object{FQN: group + "." + key, Path: []any{group, key}, Value: value})
	}
	o := k.job.Manifest.Optimizer
	lr := o.LR * k.schedule.Factor(k.pos.Step) // of the next step, as PyTorch's scheduler leaves it
	for _, p := range k.job.Params {
		for _, f := range []struct {
			name  string
			value any
		}{
			{"lr", lr}, {"initial_lr", o.LR}, {"betas", pickle.Tuple{o.Beta1, o.Beta2}}, {"eps", o.Eps}, {"weight_decay", o.WeightDecay},
			{"amsgrad", false}, {"maximize", false}, {"foreach", nil}, {"capturable", false}, {"differentiable", false},
			{"fused", true}, {"decoupled_weight_decay", true},
		} {
			add("optimizer", "param_groups."+p.FQN+"."+f.name, f.value)
		}
	}
	list := func(x float64) *pickle.List { return &pickle.List{Items: []any{x}} }
	add("lr_scheduler", "base_lrs", list(o.LR))
	add("lr_scheduler", "last_epoch", int64(k.pos.Step))
	add("lr_scheduler", "_step_count", int64(k.pos.Step+1))
	add("lr_scheduler", "_get_lr_called_within_step", false)
	add("lr_scheduler", "_last_lr", list(lr))
	add("train_state", "step", int64(k.pos.Step))
	add("train_state", "ntokens_seen", k.pos.Tokens)
	add("dataloader", "rows", k.pos.Rows)
	add("dataloader", "fingerprint", k.train.Fingerprint())
	add("dataloader", "seed", int64(k.job.Manifest.Training.Seed))
}
