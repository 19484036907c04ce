package train

import (
	"context"
	"fmt"
	"time"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/parallel"
	"titan/libtitan/pickle"
)

// due reports whether the step just done is saved: every interval, and the last one always.
func (k *rank) due(last bool) bool {
	c := k.job.Manifest.Checkpoint
	return c != nil && c.Folder != "" && (last || c.Interval > 0 && k.pos.Step%c.Interval == 0)
}

// saveTimeout is how long a save may take: the ranks wait for a disk, and not for each other.
const saveTimeout = time.Hour

// save writes the state of all ranks as one folder, while they wait.
func (k *rank) save(ctx context.Context) error {
	k.comm.SetTimeout(saveTimeout)
	defer k.comm.SetTimeout(k.stepTimeout())
	if err := k.comm.Barrier(ctx); err != nil {
		return err
	}
	if k.comm.Rank() != 0 && k.Comm == "mpi" {
		if err := k.sendState(ctx); err != nil {
			return err
		}
	}
	if k.comm.Rank() == 0 {
		s := savedState{at: map[string]int{}}
		for file, peer := range k.peers {
			if peer == nil {
				var err error
				if peer, err = k.recvState(ctx, file); err != nil {
					return err
				}
			}
			peer.addTensors(&s, file)
		}
		k.addObjects(&s.State)
		dir := checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step)
		if err := checkpoint.Write(ctx, dir, s.State, checkpoint.WriteOptions{Replace: true}); err != nil {
			return fmt.Errorf("checkpoint: step %d: %w", k.pos.Step, err)
		}
		k.Log.Info(fmt.Sprintf("saved %s", dir))
	}
	return k.comm.Barrier(ctx)
}

// sendState hands rank 0, in another process, what this rank saves; recvState takes it there.
func (k *rank) sendState(ctx context.Context) error {
	return k.eachSaved(func(what string, x []float32) error { return k.comm.Send(ctx, 0, what, floatBytes(x)) })
}

func (k *rank) recvState(ctx context.Context, from int) (*rank, error) {
	peer := &rank{run: k.run, held: k.job.Held(from), state: newState()}
	for _, h := range peer.held {
		for _, list := range []map[string][]float32{peer.state.params, peer.state.m, peer.state.v} {
			list[h.Param.FQN] = make([]float32, h.NumElements())
		}
	}
	return peer, peer.eachSaved(func(what string, x []float32) error { return k.comm.Recv(ctx, from, what, floatBytes(x)) })
}

// eachSaved calls f for every tensor part that the rank saves, in an order that both sides share.
func (k *rank) eachSaved(f func(what string, x []float32) error) error {
	for _, h := range k.held {
		if !h.First {
			continue
		}
		for i, list := range []map[string][]float32{k.state.params, k.state.m, k.state.v} {
			if err := f(fmt.Sprintf("save %s %d", h.Param.FQN, i), list[h.Param.FQN]); err != nil {
				return err
			}
		}
	}
	return nil
}

// savedHint tells where an interrupted run can go on.
func (k *rank) savedHint() string {
	if !k.due(true) {
		return ", not saved: there is no checkpoint folder"
	}
	return fmt.Sprintf(", saved in %s: the same command goes on from there", checkpoint.StepDir(k.job.Manifest.Checkpoint.Folder, k.pos.Step))
}

// addTensors adds the parts of the parameters that the rank saves and their optimizer state, as file of the folder.
func (k *rank) addTensors(s *savedState, file int) {
	for _, h := range k.held {
		if !h.First {
			continue
		}
		fqn := h.Param.FQN
		s.add(fqn, nil, h, file, k.state.params[fqn])
		s.add(moment(fqn, "exp_avg"), momentPath(fqn, "exp_avg"), h, file, k.state.m[fqn])
		s.add(moment(fqn, "exp_avg_sq"), momentPath(fqn, "exp_avg_sq"), h, file, k.state.v[fqn])
	}
}

// savedState gathers the parts of tensors that ranks hold.
type savedState struct {
	checkpoint.State
	at map[string]int // of a tensor in Tensors
}

// add adds a rank's part of a tensor. An empty part is left out, but where the tensor itself is empty.
func (s *savedState) add(fqn string, path []any, h parallel.Held, file int, x []float32) {
	i, ok := s.at[fqn]
	if !ok {
		i = len(s.Tensors)
		s.at[fqn] = i
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: fqn, Path: path, DType: dtype.Float32, Shape: h.Param.Shape})
	}
	t := &s.Tensors[i]
	if len(x) == 0 && (h.Param.NumElements() > 0 || len(t.Chunks) > 0) {
		return
	}
	t.Chunks = append(t.Chunks, checkpoint.Chunk{Offsets: h.Offsets, Sizes: h.Sizes, File: file, Fill: func(dst []byte, off int64) error {
		copy(dst, floatBytes(x)[off:])
		return nil
	}})
}

func momentPath(fqn, name string) []any { return []any{"optimizer", "state." + fqn + "." + name} }

// addObjects adds the Python values that torchtitan keeps beside tensors, and the position in the data.
func (k *rank) addObjects(s *checkpoint.State) {
	add := func(group, key string, value any) {
		s.Objects = append(s.Objects, checkpoint.Object{FQN: group + "." + key, Path: []any{group, key}, Value: value})
	}
	o := k.job.Manifest.Optimizer
	lr := o.LR * k.schedule.Factor(k.pos.Step) // of the next step, as PyTorch's scheduler leaves it
	for _, p := range k.job.Params {
		step := []float32{float32(k.pos.Step)}
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: moment(p.FQN, "step"), Path: momentPath(p.FQN, "step"), DType: dtype.Float32, Shape: []int64{},
			Chunks: checkpoint.Whole([]int64{}, func(dst []byte, _ int64) error { copy(dst, floatBytes(step)); return nil })})
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
	add("dataloader", "sequential", k.job.Manifest.Data.Sequential)
	add("dataloader", "seed", int64(k.job.Manifest.Training.Seed))
}
