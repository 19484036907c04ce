package cuda

import (
	_ "embed"
	"fmt"
	"math"

	"titan/libtitan/dtype"
)

//go:embed elementwise.cu
var elementwiseSource string

// computed are the types that kernels compute with.
var computed = []dtype.DType{dtype.Float32, dtype.BFloat16}

func elementwiseKernels() source {
	s := source{"elementwise.cu", elementwiseSource, []string{"cast<float, bf16, 4>", "cast<bf16, float, 4>"}}
	for _, t := range computed {
		for _, name := range []string{"add", "swiglu", "swiglu_backward"} {
			s.kernels = append(s.kernels, flatKernel(name, t, 16/t.Size()))
		}
		s.kernels = append(s.kernels, flatKernel("rope", t, 16/t.Size()), flatKernel("rope", t, 2))
	}
	return s
}

func flatKernel(name string, t dtype.DType, lanes int) string {
	return fmt.Sprintf("%s<%s, %d>", name, cname(t), lanes)
}

// flat spreads n elements, lanes a thread and the rest one by one.
func flat(n, lanes int) grid {
	return grid{x: blocksOf(n/lanes+n%lanes, maxThreads), threads: maxThreads}
}

// Cast writes the n elements of x, of type from, to y as type to: float32 and bfloat16 either way.
func (e *Engine) Cast(to dtype.DType, y Ptr, from dtype.DType, x Ptr, n int) (Work, error) {
	return e.bind(fmt.Sprintf("cast<%s, %s, 4>", cname(from), cname(to)), flat(n, 4), pack(x, y, n))
}

// maxTerms is how many values one sum has at most.
const maxTerms = 16

// Add sums values of n elements into y, left to right, and rounds once; y may be one of them.
func (e *Engine) Add(t dtype.DType, y Ptr, n int, xs ...Ptr) (Work, error) {
	if len(xs) > maxTerms {
		return nil, fmt.Errorf("cuda: a sum of %d values: at most %d", len(xs), maxTerms)
	}
	in := make([]Ptr, maxTerms)
	copy(in, xs)
	return e.bind(flatKernel("add", t, 16/t.Size()), flat(n, 16/t.Size()), pack(in, y, len(xs), n))
}

// SwiGLU computes y = a·sigmoid(a)·b (Shazeer, 2020) on n elements; y may be a or b.
func (e *Engine) SwiGLU(t dtype.DType, y, a, b Ptr, n int) (Work, error) {
	return e.bind(flatKernel("swiglu", t, 16/t.Size()), flat(n, 16/t.Size()), pack(a, b, y, n))
}

// Columns are a matrix in memory, or columns of a wider one: Row is the elements from a row to the next, 0 where it is dense.
type Columns struct {
	P   Ptr
	Row int
}

// gap is the elements between two rows of width elements.
func (c Columns) gap(width int) int { return max(0, c.Row-width) }

// SwiGLUBackward writes da = dy·b·silu'(a) and db = dy·silu(a); they may be a, b or dy.
func (e *Engine) SwiGLUBackward(t dtype.DType, da, db, dy, a, b Ptr, n int) (Work, error) {
	return e.bind(flatKernel("swiglu_backward", t, 16/t.Size()), flat(n, 16/t.Size()), pack(dy, a, b, da, db, n))
}

// Rope turns neighbouring channels of x [batch, seq, heads, dim] by the angle of their position (Su et al., 2021):
// cos and sin are float32 [seq, dim/2]. inverse turns the other way, which is the backward. A row of y is a position's heads; y may
// be x if it is dense.
func (e *Engine) Rope(t dtype.DType, y Columns, x, cos, sin Ptr, batch, seq, heads, dim int, inverse bool) (Work, error) {
	return e.RopeLargest(t, y, 0, x, cos, sin, batch, seq, heads, dim, inverse)
}

// RopeLargest is Rope that writes the largest magnitude of y, as Amax has it, to largest too, unless that is 0.
func (e *Engine) RopeLargest(t dtype.DType, y Columns, largest, x, cos, sin Ptr, batch, seq, heads, dim int, inverse bool) (Work, error) {
	lanes := 16 / t.Size()
	if dim%lanes != 0 {
		lanes = 2
	}
	n, sign := batch*seq*heads*dim, float32(1)
	if inverse {
		sign = -1
	}
	if n > math.MaxUint32-lanes*maxThreads {
		return nil, fmt.Errorf("cuda: rope on %d elements: at most 2^32", n)
	}
	g, params := grid{x: blocksOf(n/lanes, maxThreads), threads: maxThreads}, []any{x, cos, sin, y.P, y.gap(heads * dim), n, seq, heads, dim, sign}
	if largest == 0 {
		return e.bind(flatKernel("rope", t, lanes), g, pack(params...))
	}
	state, err := e.zeros()
	if err != nil {
		return nil, err
	}
	g.x = max(1, min(g.x, blocksPerSM/2*e.SMs)) // fewer have to be joined: 39.9 us of llama3-8b's queries for 41.3, 15.4 of its keys for 17.1
	name := flatKernel("rope_largest", t, lanes)
	if err := e.need(source{"elementwise.cu", elementwiseSource, []string{name}}); err != nil {
		return nil, err
	}
	return e.bind(name, g, pack(append(params, largest, state)...))
}
