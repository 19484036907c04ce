package train

import (
	"unsafe"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/parallel"
)

// loadState makes the rank's parameters, and for training their gradients and moments.
func (k *rank) loadState(training bool) error {
	k.state = newState()
	for _, h := range k.held {
		fqn, n := h.Param.FQN, h.NumElements()
		k.state.params[fqn] = make([]float32, n)
		if k.from == nil {
			k.fromSeed(h)
		} else if err := k.read(k.stored[fqn], h, k.state.params[fqn]); err != nil {
			return err
		}
		if !training {
			continue
		}
		k.state.grads[fqn] = make([]float32, n)
		for name, list := range map[string]map[string][]float32{"exp_avg": k.state.m, "exp_avg_sq": k.state.v} {
			list[fqn] = make([]float32, n)
			if !k.resume {
				continue
			}
			if err := k.read(k.stored[moment(fqn, name)], h, list[fqn]); err != nil {
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
