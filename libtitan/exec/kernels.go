package exec

import (
	"fmt"
	"math"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
	"titan/libtitan/op"
)

// call is one application of an op on memory.
type call struct {
	e       *cpu.Engine
	attr    any
	in, out []tensor
	add     []bool   // per result: add into it
	room    *scratch // to work in
}

// kernel computes one node on memory that it was bound to.
type kernel func() error

// sure is a kernel that cannot fail.
func sure(f func()) kernel { return func() error { f(); return nil } }

// kernels binds every op of the models to the host's kernels. A binding looks at shapes and types once; the function
// it returns only computes.
var kernels = map[string]func(c call) (kernel, error){
	"einsum":                 bindEinsum,
	"fused":                  bindFused,
	"add":                    bindAdd,
	"cast":                   bindCast,
	"embedding":              bindEmbedding,
	"embedding_backward":     bindEmbeddingBackward,
	"rmsnorm":                bindRMSNorm,
	"rmsnorm_backward":       bindRMSNormBackward,
	"rope_table":             bindRopeTable,
	"rope":                   bindRope,
	"attention":              bindAttention,
	"attention_backward":     bindAttentionBackward,
	"swiglu":                 bindSwiGLU,
	"swiglu_backward":        bindSwiGLUBackward,
	"cross_entropy":          bindCrossEntropy,
	"cross_entropy_backward": bindCrossEntropyBackward,
	"row_max":                bindRowMax,
	"row_sums":               bindRowSums,
	"row_loss":               bindRowLoss,
	"amax":                   bindAmax,
	"float8_cast":            bindFloat8Cast,
	"float8_turn":            bindFloat8Turn,
	"float8_product":         bindFloat8Product,
}

// rows is t as rows of its last dim.
func (t tensor) rows() (n, width int) {
	n = 1
	for _, d := range t.Shape[:len(t.Shape)-1] {
		n *= d
	}
	return n, t.Shape[len(t.Shape)-1]
}

func bindAdd(c call) (kernel, error) {
	if c.out[0].narrow() {
		in := make([][]uint16, len(c.in))
		for i, t := range c.in {
			in[i] = t.bf16()
		}
		return sure(func() { c.e.AddBF16(c.out[0].bf16(), in...) }), nil
	}
	in := make([][]float32, len(c.in))
	for i, t := range c.in {
		in[i] = t.f32()
	}
	return sure(func() { c.e.Add(c.out[0].f32(), in...) }), nil
}

// accumulate adds its input into its result, or copies it there the first time.
func accumulate(c call) kernel {
	in, out := c.in[0].f32(), c.out[0].f32()
	if !c.add[0] {
		return sure(func() { copy(out, in) })
	}
	return sure(func() { c.e.Add(out, out, in) })
}

func bindCast(c call) (kernel, error) {
	in, out := c.in[0], c.out[0]
	switch {
	case in.DType == dtype.Float32 && out.narrow():
		return sure(func() { c.e.Narrow(out.bf16(), in.f32()) }), nil
	case in.narrow() && out.DType == dtype.Float32:
		return sure(func() { c.e.Widen(out.f32(), in.bf16()) }), nil
	}
	return nil, fmt.Errorf("no cast from %v to %v", in.DType, out.DType)
}

func bindEmbedding(c call) (kernel, error) {
	ids, table, out := c.in[0].i32(), c.in[1], c.out[0]
	vocab, dim := table.rows()
	mine := part(table, 0)
	if out.narrow() {
		return func() error { return c.e.EmbeddingBF16(out.bf16(), table.bf16(), mine(ids), vocab, dim) }, nil
	}
	return func() error { return c.e.Embedding(out.f32(), table.f32(), mine(ids), vocab, dim) }, nil
}

func bindEmbeddingBackward(c call) (kernel, error) {
	dy, ids, out, add := c.in[0], c.in[1].i32(), c.out[0].f32(), c.add[0]
	vocab, dim := c.out[0].rows()
	mine := part(c.out[0], 0)
	if dy.narrow() {
		return func() error { return c.e.EmbeddingBackwardBF16(out, dy.bf16(), mine(ids), vocab, dim, add) }, nil
	}
	return func() error { return c.e.EmbeddingBackward(out, dy.f32(), mine(ids), vocab, dim, add) }, nil
}

func bindRMSNorm(c call) (kernel, error) {
	x, w, y, rstd := c.in[0], c.in[1], c.out[0], c.out[1].f32()
	rows, dim := x.rows()
	eps := float32(c.attr.(op.RMSNormAttr).Eps)
	if x.narrow() {
		return sure(func() { c.e.RMSNormBF16(y.bf16(), rstd, x.bf16(), w.bf16(), rows, dim, eps) }), nil
	}
	return sure(func() { c.e.RMSNorm(y.f32(), rstd, x.f32(), w.f32(), rows, dim, eps) }), nil
}

func bindRMSNormBackward(c call) (kernel, error) {
	dy, x, w, rstd := c.in[0], c.in[1], c.in[2], c.in[3].f32()
	dx, dw, add := c.out[0], c.out[1].f32(), c.add[1]
	rows, dim := x.rows()
	if x.narrow() {
		return sure(func() {
			c.e.RMSNormBackwardBF16(dx.bf16(), dw, dy.bf16(), x.bf16(), w.bf16(), rstd, rows, dim, add)
		}), nil
	}
	return sure(func() { c.e.RMSNormBackward(dx.f32(), dw, dy.f32(), x.f32(), w.f32(), rstd, rows, dim, add) }), nil
}

func bindRopeTable(c call) (kernel, error) {
	a := c.attr.(op.RopeTableAttr)
	return sure(func() { a.Fill(c.out[0].f32(), c.out[1].f32(), c.out[0].at[0].Start) }), nil
}

func bindRope(c call) (kernel, error) {
	x, cos, sin, y := c.in[0], c.in[1].f32(), c.in[2].f32(), c.out[0]
	b, s, n, h := x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3]
	inverse := c.attr.(op.RopeAttr).Inverse
	if x.narrow() {
		return sure(func() { c.e.RopeBF16(y.bf16(), x.bf16(), cos, sin, b, s, n, h, inverse) }), nil
	}
	return sure(func() { c.e.Rope(y.f32(), x.f32(), cos, sin, b, s, n, h, inverse) }), nil
}

func bindSwiGLU(c call) (kernel, error) {
	a, b, y := c.in[0], c.in[1], c.out[0]
	if a.narrow() {
		return sure(func() { c.e.SwiGLUBF16(y.bf16(), a.bf16(), b.bf16()) }), nil
	}
	return sure(func() { c.e.SwiGLU(y.f32(), a.f32(), b.f32()) }), nil
}

func bindSwiGLUBackward(c call) (kernel, error) {
	dy, a, b, da, db := c.in[0], c.in[1], c.in[2], c.out[0], c.out[1]
	if a.narrow() {
		return sure(func() { c.e.SwiGLUBackwardBF16(da.bf16(), db.bf16(), dy.bf16(), a.bf16(), b.bf16()) }), nil
	}
	return sure(func() { c.e.SwiGLUBackward(da.f32(), db.f32(), dy.f32(), a.f32(), b.f32()) }), nil
}

func bindCrossEntropy(c call) (kernel, error) {
	logits, labels, loss, lse := c.in[0], c.in[1].i32(), c.out[0].f32(), c.out[1].f32()
	rows, vocab := logits.rows()
	return func() error {
		var sum float64
		var err error
		if logits.narrow() {
			sum, err = c.e.CrossEntropyBF16(nil, lse, logits.bf16(), labels, rows, vocab)
		} else {
			sum, err = c.e.CrossEntropy(nil, lse, logits.f32(), labels, rows, vocab)
		}
		loss[0] = float32(sum)
		return err
	}, nil
}

func bindCrossEntropyBackward(c call) (kernel, error) {
	logits, labels, lse, scale, out := c.in[0], c.in[1].i32(), c.in[2].f32(), c.in[3].f32(), c.out[0]
	rows, vocab := logits.rows()
	mine := part(logits, 2)
	if logits.narrow() {
		return sure(func() {
			c.e.CrossEntropyBackwardBF16(out.bf16(), logits.bf16(), mine(labels), lse, scale[0], rows, vocab)
		}), nil
	}
	return sure(func() { c.e.CrossEntropyBackward(out.f32(), logits.f32(), mine(labels), lse, scale[0], rows, vocab) }), nil
}

// part gives ids and labels as they stand in what a rank holds of a vocabulary, dim of t.
func part(t tensor, dim int) func(ids []int32) []int32 {
	first, n := int32(t.at[dim].Start), int32(t.at[dim].Len)
	if t.whole(dim) {
		return func(ids []int32) []int32 { return ids }
	}
	var buf []int32
	return func(ids []int32) []int32 {
		buf = buf[:0]
		for _, id := range ids {
			switch {
			case id == op.Ignored:
			case id < first || id >= first+n:
				id = cpu.Elsewhere
			default:
				id -= first
			}
			buf = append(buf, id)
		}
		return buf
	}
}

func bindRowMax(c call) (kernel, error) {
	logits, top := c.in[0], c.out[0].f32()
	rows, vocab := logits.rows()
	if logits.narrow() {
		return sure(func() { c.e.RowMaxBF16(top, logits.bf16(), rows, vocab) }), nil
	}
	return sure(func() { c.e.RowMax(top, logits.f32(), rows, vocab) }), nil
}

func bindRowSums(c call) (kernel, error) {
	logits, labels, top, sums, picked := c.in[0], c.in[1].i32(), c.in[2].f32(), c.out[0].f32(), c.out[1].f32()
	rows, vocab := logits.rows()
	mine := part(logits, 2)
	if logits.narrow() {
		return sure(func() { c.e.RowSumsBF16(sums, picked, logits.bf16(), mine(labels), top, rows, vocab) }), nil
	}
	return sure(func() { c.e.RowSums(sums, picked, logits.f32(), mine(labels), top, rows, vocab) }), nil
}

func bindRowLoss(c call) (kernel, error) {
	top, sums, picked, labels := c.in[0].f32(), c.in[1].f32(), c.in[2].f32(), c.in[3].i32()
	loss, lse := c.out[0].f32(), c.out[1].f32()
	return sure(func() {
		var total float64
		for i, l := range labels {
			exact := float64(top[i]) + math.Log(float64(sums[i]))
			lse[i] = float32(exact)
			if l != op.Ignored {
				total += exact - float64(picked[i])
			}
		}
		loss[0] = float32(total)
	}), nil
}
