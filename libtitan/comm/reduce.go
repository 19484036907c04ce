package comm

import (
	"unsafe"

	"titan/libtitan/dtype"
)

// block is how many elements are summed before the next: 8 KiB of float32 and its operands stay in the first cache.
const block = 2048

type number interface{ float32 | float64 | int64 }

// reducer is the reduction of one dtype: dst becomes srcs[0] op srcs[1] op ..., in that order. All are equally
// long; dst may be one of srcs.
type reducer func(op Op, dst []byte, srcs [][]byte)

var reducers = map[dtype.DType]reducer{
	dtype.Float32:  reduce[float32],
	dtype.Float64:  reduce[float64],
	dtype.Int64:    reduce[int64],
	dtype.BFloat16: reduceBF16,
}

func reduce[T number](op Op, dst []byte, srcs [][]byte) {
	var room [block]T
	out := as[T](dst)
	for from := 0; from < len(out); from += block {
		to := min(from+block, len(out))
		acc, sum := as[T](srcs[0])[from:to], room[:to-from]
		for i, s := range srcs[1:] {
			if i == len(srcs)-2 {
				sum = out[from:to] // the last may write over what it reads
			}
			join(op, sum, acc, as[T](s)[from:to])
			acc = sum
		}
		if len(srcs) == 1 {
			copy(out[from:to], acc)
		}
	}
}

func reduceBF16(op Op, dst []byte, srcs [][]byte) {
	var acc, next [block]float32
	out := as[uint16](dst)
	for from := 0; from < len(out); from += block {
		to := min(from+block, len(out))
		a, b := acc[:to-from], next[:to-from]
		dtype.WidenBF16(a, as[uint16](srcs[0])[from:to])
		for _, s := range srcs[1:] {
			dtype.WidenBF16(b, as[uint16](s)[from:to])
			join(op, a, a, b)
		}
		dtype.NarrowBF16(out[from:to], a)
	}
}

// join sets dst to a op b; dst may be either.
func join[T number](op Op, dst, a, b []T) {
	a, b = a[:len(dst)], b[:len(dst)]
	if op == Max {
		for i := range dst {
			dst[i] = max(a[i], b[i])
		}
		return
	}
	for i := range dst {
		dst[i] = a[i] + b[i]
	}
}

// as is the memory of b as numbers of another type.
func as[T any](b []byte) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(t)))
}

// bytesOf is the memory of data.
func bytesOf(data []float64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(data))), 8*len(data))
}
