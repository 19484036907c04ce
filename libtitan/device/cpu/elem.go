package cpu

// elem is what activations are stored as: float32, or bfloat16 in a uint16.
// Kernels compute on float32; the functions below are the only place that knows the difference.
type elem interface{ float32 | uint16 }

// widened gives src as float32: src itself, or a bfloat16 src converted into buf (as long as src or longer).
func widened[T elem](k *kernels, buf []float32, src []T) []float32 {
	switch s := any(src).(type) {
	case []float32:
		return s
	case []uint16:
		buf = buf[:len(s)]
		k.widen(buf, s)
		return buf
	}
	return nil
}

// target gives the float32 slice to compute dst in: dst itself, or room for it in buf when it is bfloat16.
// Call stored when it is full.
func target[T elem](buf []float32, dst []T) []float32 {
	if d, ok := any(dst).([]float32); ok {
		return d
	}
	return buf[:len(dst)]
}

// stored rounds what was computed in target's slice into a bfloat16 dst; a float32 dst holds it already.
func stored[T elem](k *kernels, dst []T, from []float32) {
	if d, ok := any(dst).([]uint16); ok {
		k.narrow(d, from)
	}
}

// copyWide copies src, widening it when it is bfloat16.
func copyWide[T elem](k *kernels, dst []float32, src []T) {
	switch s := any(src).(type) {
	case []float32:
		copy(dst, s)
	case []uint16:
		k.widen(dst, s)
	}
}

// copyRowsWide copies rows of cols elements, sld apart in src and dld apart in dst, widening them when they are bfloat16.
func copyRowsWide[T elem](k *kernels, dst []float32, dld int, src []T, sld, rows, cols int) {
	switch s := any(src).(type) {
	case []float32:
		k.copyRows(dst, dld, s, sld, rows, cols)
	case []uint16:
		for r := range rows {
			k.widen(dst[r*dld:][:cols], s[r*sld:][:cols])
		}
	}
}

// storeWide copies src into dst, rounding it when dst is bfloat16.
func storeWide[T elem](k *kernels, dst []T, src []float32) {
	switch d := any(dst).(type) {
	case []float32:
		copy(d, src)
	case []uint16:
		k.narrow(d, src)
	}
}

// scratchFor is n when T needs float32 scratch, else 0.
func scratchFor[T elem](n int) int {
	var z T
	if _, ok := any(z).(float32); ok {
		return 0
	}
	return n
}
