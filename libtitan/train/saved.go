package train

import (
	"encoding/binary"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pickle"
)

// fullState is all that a run goes on from: each rank's parts of the parameters and their moments as a file, and what
// torchtitan keeps beside them.
func (k *rank) fullState(peers []*rank) checkpoint.State {
	s := savedState{at: map[string]int{}}
	for file, peer := range peers {
		from := peer.saver.from
		peer.eachFirst(func(fqn string, h parallel.Held) {
			s.add(fqn, nil, h, file, dtype.Float32, from.params[fqn])
			s.add(moment(fqn, "exp_avg"), momentPath(fqn, "exp_avg"), h, file, dtype.Float32, from.m[fqn])
			s.add(moment(fqn, "exp_avg_sq"), momentPath(fqn, "exp_avg_sq"), h, file, dtype.Float32, from.v[fqn])
		})
	}
	k.addObjects(&s.State)
	return s.State
}

// modelState is the parameters alone, rounded to d.
func (k *rank) modelState(peers []*rank, d dtype.DType) checkpoint.State {
	s := savedState{at: map[string]int{}}
	for file, peer := range peers {
		peer.eachFirst(func(fqn string, h parallel.Held) { s.add(fqn, nil, h, file, d, peer.saver.from.params[fqn]) })
	}
	return s.State
}

// eachFirst calls f for the parts of parameters that this rank saves.
func (k *rank) eachFirst(f func(fqn string, h parallel.Held)) {
	for _, h := range k.held {
		if h.First {
			f(h.Param.FQN, h)
		}
	}
}

// exportDType is the dtype of a last save of the model alone: what is asked for, else, in Hugging Face's form, that of
// the weights that the run began from in theirs.
func exportDType(c *manifest.Checkpoint) dtype.DType {
	d, err := dtype.Parse(c.ExportDType)
	if err != nil && c.LastSaveInHF && c.InitialLoadPath != "" {
		d = checkpoint.FloatType(c.InitialLoadPath)
	}
	if d != dtype.BFloat16 && d != dtype.Float16 {
		return dtype.Float32
	}
	return d
}

// savedState gathers the parts of tensors that ranks hold.
type savedState struct {
	checkpoint.State
	at map[string]int // of a tensor in Tensors
}

// add adds a rank's part of a tensor, which is stored as d. An empty part is left out, but where the tensor itself is empty.
func (s *savedState) add(fqn string, path []any, h parallel.Held, file int, d dtype.DType, x []float32) {
	i, ok := s.at[fqn]
	if !ok {
		i = len(s.Tensors)
		s.at[fqn] = i
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: fqn, Path: path, DType: d, Shape: h.Param.Shape})
	}
	t := &s.Tensors[i]
	if len(x) == 0 && (h.Param.NumElements() > 0 || len(t.Chunks) > 0) {
		return
	}
	t.Chunks = append(t.Chunks, checkpoint.Chunk{Offsets: h.Offsets, Sizes: h.Sizes, File: file, Fill: fill(d, x)})
}

// fill gives x's bytes, rounded to d.
func fill(d dtype.DType, x []float32) checkpoint.Fill {
	narrow := dtype.BF16
	if d == dtype.Float16 {
		narrow = dtype.F16
	}
	return func(dst []byte, off int64) error {
		if d == dtype.Float32 {
			copy(dst, floatBytes(x)[off:])
			return nil
		}
		for i, f := range x[off/2:][:len(dst)/2] {
			binary.LittleEndian.PutUint16(dst[2*i:], narrow(f))
		}
		return nil
	}
}

func momentPath(fqn, name string) []any { return []any{"optimizer", "state." + fqn + "." + name} }

// addObjects adds the Python values that torchtitan keeps beside tensors, and the position in the data.
func (k *rank) addObjects(s *checkpoint.State) {
	add := func(group, key string, value any) {
		s.Objects = append(s.Objects, checkpoint.Object{FQN: group + "." + key, Path: []any{group, key}, Value: value})
	}
	o := k.job.Manifest.Optimizer
	lr := o.LR * k.schedule.Factor(k.pos.Epoch) // of the next step, as PyTorch's scheduler leaves it
	for _, p := range k.job.Params {
		step := []float32{float32(k.pos.Updates)}
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
	add("lr_scheduler", "last_epoch", int64(k.pos.Epoch))
	add("lr_scheduler", "_step_count", int64(k.pos.Epoch+1))
	add("lr_scheduler", "_get_lr_called_within_step", false)
	add("lr_scheduler", "_is_initial", false)
	add("lr_scheduler", "_last_lr", list(lr))
	add("train_state", "step", int64(k.pos.Step))
	add("train_state", "ntokens_seen", k.pos.Tokens)
	add("dataloader", "rows", k.pos.Rows)
	add("dataloader", "fingerprint", k.train.Fingerprint())
	add("dataloader", "sequential", k.job.Manifest.Data.Sequential)
	add("dataloader", "seed", int64(k.job.Manifest.Training.Seed))
}
