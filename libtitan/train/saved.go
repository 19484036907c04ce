package train

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pickle"
)

// saving is what a save is of, and how it is made.
type saving struct {
	at    position
	mode  string // manifest.AsyncOff: training waits
	kinds []tensorKind
	dtype dtype.DType // of the tensors
	hf    bool        // in Hugging Face's form
	note  string      // on that, for people
}

// saving decides what the step just done leaves.
func (k *rank) saving(last bool) saving {
	c := k.job.Manifest.Checkpoint
	w := saving{at: k.pos, mode: manifest.AsyncOff, kinds: stateKinds(true), dtype: dtype.Float32}
	if c.Async() && !last {
		w.mode = c.AsyncMode
	}
	if c.LastSaveModelOnly && k.pos.Step == k.job.Manifest.Training.Steps {
		w.kinds, w.dtype, w.hf = w.kinds[:1], exportDType(c), c.LastSaveInHF
		if w.note = fmt.Sprintf(": the model alone, in %v", w.dtype); w.hf {
			w.note += " and Hugging Face's form"
		}
	}
	return w
}

// full reports whether a run can go on from it.
func (w saving) full() bool { return len(w.kinds) > 1 }

// savedState is what the given ranks save: their parts of the parameters and of the moments, a file each, and with rank
// 0's what torchtitan keeps beside them. In a file parts follow each other as the parameters do, whatever other ranks
// save. from, which may be nil, is where the parts are read.
func (k *rank) savedState(w saving, ranks []int, from snapshot) checkpoint.State {
	type part struct {
		file int
		held parallel.Held
	}
	var parts []part
	for _, file := range ranks {
		for _, h := range k.job.Held(file) {
			if h.First {
				parts = append(parts, part{file, h})
			}
		}
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.held.Index, b.held.Index) })
	s := savedState{at: map[string]int{}}
	for _, p := range parts {
		for _, kind := range w.kinds {
			s.add(kind, p.held, p.file, w.dtype, from)
		}
	}
	if w.full() && slices.Contains(ranks, 0) {
		k.addObjects(&s.State, w.at)
	}
	return s.State
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
func (s *savedState) add(kind tensorKind, h parallel.Held, file int, d dtype.DType, from snapshot) {
	fqn, path := h.Param.FQN, []any(nil)
	if kind != aParameter {
		fqn, path = moment(fqn, kind.String()), momentPath(fqn, kind.String())
	}
	i, ok := s.at[fqn]
	if !ok {
		i = len(s.Tensors)
		s.at[fqn] = i
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: fqn, Path: path, DType: d, Shape: h.Param.Shape})
	}
	t := &s.Tensors[i]
	if h.NumElements() == 0 && (h.Param.NumElements() > 0 || len(t.Chunks) > 0) {
		return
	}
	c := checkpoint.Chunk{Offsets: h.Offsets, Sizes: h.Sizes, File: file}
	if from != nil {
		c.Fill = fill(d, func(dst []byte, off int64) error { return from.read(kind, h.Param.FQN, dst, off) })
	}
	t.Chunks = append(t.Chunks, c)
}

// fill gives the bytes of float32 that read gives, rounded to d.
func fill(d dtype.DType, read checkpoint.Fill) checkpoint.Fill {
	narrow := dtype.BF16
	switch d {
	case dtype.Float32:
		return read
	case dtype.Float16:
		narrow = dtype.F16
	}
	return func(dst []byte, off int64) error {
		wide := make([]float32, len(dst)/2)
		if err := read(floatBytes(wide), 2*off); err != nil {
			return err
		}
		for i, f := range wide {
			binary.LittleEndian.PutUint16(dst[2*i:], narrow(f))
		}
		return nil
	}
}

func momentPath(fqn, name string) []any { return []any{"optimizer", "state." + fqn + "." + name} }

// addObjects adds the Python values that torchtitan keeps beside tensors, and the position in the data.
func (k *rank) addObjects(s *checkpoint.State, at position) {
	add := func(group, key string, value any) {
		s.Objects = append(s.Objects, checkpoint.Object{FQN: group + "." + key, Path: []any{group, key}, Value: value})
	}
	o := k.job.Manifest.Optimizer
	lr := o.LR * k.schedule.Factor(at.Epoch) // of the next step, as PyTorch's scheduler leaves it
	for _, p := range k.job.Params {
		step := []float32{float32(at.Updates)}
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
	add("lr_scheduler", "last_epoch", int64(at.Epoch))
	add("lr_scheduler", "_step_count", int64(at.Epoch+1))
	add("lr_scheduler", "_get_lr_called_within_step", false)
	add("lr_scheduler", "_is_initial", false)
	add("lr_scheduler", "_last_lr", list(lr))
	add("train_state", "step", int64(at.Step))
	add("train_state", "ntokens_seen", at.Tokens)
	add("dataloader", "rows", at.Rows)
	add("dataloader", "fingerprint", k.train.Fingerprint())
	add("dataloader", "sequential", k.job.Manifest.Data.Sequential)
	add("dataloader", "seed", int64(k.job.Manifest.Training.Seed))
}
