package cuda

import (
	_ "embed"

	"titan/libtitan/dtype"
)

//go:embed partial.cu
var partialSource string

func (e *Engine) partial(kernel string, t dtype.DType, lanes int) (name string, err error) {
	name = flatKernel(kernel, t, lanes)
	return name, e.need(source{"partial.cu", partialSource, []string{name}})
}

// fours is how many elements a thread moves at once: 4 where n is a multiple of that and the sums are aligned to it.
func fours(n int, sum, x Ptr) int {
	if n%4 == 0 && sum%16 == 0 && x%16 == 0 {
		return 4
	}
	return 1
}

// JoinAttention adds to o, float32 [count, heads, dim], the attention of the same queries over more keys: part, of type
// t, with its log-sum-exps [heads, count]. lse, o's own, has count of every stride for each head. first: o and lse hold
// nothing yet.
func (e *Engine) JoinAttention(t dtype.DType, o, lse Ptr, stride int, part, partLSE Ptr, count, heads, dim int, first bool) (Work, error) {
	name, err := e.partial("join_attention", t, fours(dim, o, part))
	if err != nil {
		return nil, err
	}
	return e.bind(name, grid{x: blocksOf(count*heads, 8), threads: 256}, pack(o, lse, stride, part, partLSE, count, heads, dim, first))
}

// AddTo adds the n elements of x, of type t, to sum, float32.
func (e *Engine) AddTo(t dtype.DType, sum, x Ptr, n int) (Work, error) {
	lanes := fours(n, sum, x)
	name, err := e.partial("add_to", t, lanes)
	if err != nil {
		return nil, err
	}
	return e.bind(name, flat(n, lanes), pack(sum, x, n))
}
