package train

import (
	"unsafe"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/parallel"
)

// state is what the optimizer works on, by FQN: all float32, all of what the rank holds of the parameter. It is a
// snapshot of itself where nothing changes it meanwhile.
type state struct{ params, grads, m, v map[string][]float32 }

func newState() *state {
	return &state{map[string][]float32{}, map[string][]float32{}, map[string][]float32{}, map[string][]float32{}}
}

func (s *state) list(kind tensorKind) map[string][]float32 {
	return [...]map[string][]float32{s.params, s.grads, s.m, s.v}[kind]
}

func (s *state) read(kind tensorKind, fqn string, dst []byte, off int64) error {
	copy(dst, floatBytes(s.list(kind)[fqn])[off:])
	return nil
}

func (s *state) wait() error { return nil }
func (s *state) free() error { return nil }

// loadState makes the rank's parameters, and for training their gradients and moments.
func (k *rank) loadState(training bool) error {
	for _, h := range k.held {
		fqn, n := h.Param.FQN, h.NumElements()
		if training {
			k.state.grads[fqn] = make([]float32, n)
		}
		for _, kind := range stateKinds(training) {
			x := make([]float32, n)
			k.state.list(kind)[fqn] = x
			if err := k.initial(kind, h, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// starts reports whether a tensor starts from anything but zeros.
func (k *rank) starts(kind tensorKind) bool { return kind == aParameter || k.resume }

// initial fills dst, of zeros, with what a part of a tensor starts from.
func (k *rank) initial(kind tensorKind, h parallel.Held, dst []float32) error {
	switch {
	case !k.starts(kind):
		return nil
	case k.from == nil:
		k.fromSeed(h, dst)
		return nil
	case kind == aParameter:
		return k.read(k.stored[h.Param.FQN], h, dst)
	}
	return k.read(k.stored[moment(h.Param.FQN, kind.String())], h, dst)
}

// fromSeed makes what a part of a parameter starts from where there is no file: the values that seedinit would write.
// A part is whole rows, or a range of each row.
func (k *rank) fromSeed(h parallel.Held, dst []float32) {
	fill := Initial(h.Param, k.job.Manifest.Training.Seed)
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

// read fills dst from a tensor of the checkpoint; narrow floats are widened.
func (k *rank) read(name string, h parallel.Held, dst []float32) error {
	if len(dst) == 0 {
		return nil
	}
	item, ok := k.item(name)
	if !ok {
		return exit.Input.Errorf("checkpoint: %s: not in it", name)
	}
	widen := dtype.WidenBF16
	switch item.DType {
	case dtype.Float32:
		return k.from.ReadRegion(name, h.Offsets, h.Sizes, floatBytes(dst))
	case dtype.Float16:
		widen = dtype.WidenF16
	case dtype.BFloat16:
	default:
		return exit.Input.Errorf("checkpoint: %s: it is %v: training starts from float32, bfloat16 or float16", name, item.DType)
	}
	narrow := make([]uint16, len(dst))
	raw := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(narrow))), 2*len(narrow))
	if err := k.from.ReadRegion(name, h.Offsets, h.Sizes, raw); err != nil {
		return err
	}
	widen(dst, narrow)
	return nil
}

// floatBytes is the memory of x.
func floatBytes(x []float32) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 4*len(x))
}
