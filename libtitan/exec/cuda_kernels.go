package exec

import (
	"math"

	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
)

// cudaKernels binds every op of the models to the GPU's kernels, as kernels does to the host's.
var cudaKernels = map[string]func(c gpuCall) (cuda.Work, error){
	"einsum":                 gpuEinsum,
	"fused":                  gpuFused,
	"add":                    gpuAdd,
	"cast":                   gpuCast,
	"embedding":              gpuEmbedding,
	"embedding_backward":     gpuEmbeddingBackward,
	"rmsnorm":                gpuRMSNorm,
	"rmsnorm_backward":       gpuRMSNormBackward,
	"rope_table":             gpuRopeTable,
	"rope":                   gpuRope,
	"attention":              gpuAttention,
	"attention_backward":     gpuAttentionBackward,
	"swiglu":                 gpuSwiGLU,
	"swiglu_backward":        gpuSwiGLUBackward,
	"cross_entropy":          gpuCrossEntropy,
	"cross_entropy_backward": gpuCrossEntropyBackward,
	"row_max":                gpuRowMax,
	"row_sums":               gpuRowSums,
	"row_loss":               gpuRowLoss,
	"amax":                   gpuAmax,
	"float8_cast":            gpuFloat8Cast,
	"float8_turn":            gpuFloat8Turn,
	"float8_product":         gpuFloat8Product,
}

func gpuEinsum(c gpuCall) (cuda.Work, error) {
	p, a, b, err := gpuProduct(c)
	if err != nil {
		return nil, err
	}
	if len(c.in) > 2 { // plan.SumInProducts
		return c.e.ProductPlus(p, c.out[0].p, a, b, c.in[2].p)
	}
	p.Add = c.add[0]
	return c.e.Product(p, c.out[0].p, a, b)
}

// gpuProduct is the contraction of a call's first two inputs as a product of matrices a and b.
func gpuProduct(c gpuCall) (p cuda.Product, a, b cuda.Ptr, err error) {
	l, err := lower(c.attr.(op.EinsumAttr).Spec, c.in[0].Shape, c.in[1].Shape)
	if err != nil {
		return p, 0, 0, err
	}
	x, y := c.in[0], c.in[1]
	if l.swap {
		x, y = y, x
	}
	return cuda.Product{M: l.m, N: l.n, K: l.k, TransA: l.transA, TransB: l.transB, In: x.DType, Out: c.out[0].DType}, x.p, y.p, nil
}

func gpuAdd(c gpuCall) (cuda.Work, error) {
	var in []cuda.Ptr
	for _, t := range c.in {
		in = append(in, t.p)
	}
	return c.e.Add(c.out[0].DType, c.out[0].p, c.out[0].NumElements(), in...)
}

// gpuAccumulate adds its input into its result, or copies it there the first time.
func gpuAccumulate(c gpuCall) (cuda.Work, error) {
	in, out := c.in[0], c.out[0]
	if in.p == out.p { // it is there already
		return func() error { return nil }, nil
	}
	if !c.add[0] {
		return func() error { return c.e.Stream.Copy(out.p, in.p, out.Bytes()) }, nil
	}
	return c.e.Add(out.DType, out.p, out.NumElements(), out.p, in.p)
}

func gpuCast(c gpuCall) (cuda.Work, error) {
	return c.e.Cast(c.out[0].DType, c.out[0].p, c.in[0].DType, c.in[0].p, c.in[0].NumElements())
}

// vocab is the part of the vocabulary, dim of t, that the rank holds.
func (t gpuTensor) vocab(dim int) cuda.Vocab {
	return cuda.Vocab{First: t.at[dim].Start, Size: t.at[dim].Len}
}

func gpuEmbedding(c gpuCall) (cuda.Work, error) {
	_, dim := c.in[1].rows()
	return c.e.Embedding(c.out[0].DType, c.out[0].p, c.in[1].DType, c.in[1].p, c.in[0].p, c.in[0].NumElements(), c.in[1].vocab(0), dim)
}

func gpuEmbeddingBackward(c gpuCall) (cuda.Work, error) {
	_, dim := c.out[0].rows()
	if len(c.out) > 1 { // plan.GradsByRows
		return c.e.EmbeddingBackwardRows(c.in[0].DType, c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, c.in[1].NumElements(), c.out[0].vocab(0), dim)
	}
	return c.e.EmbeddingBackward(c.in[0].DType, c.out[0].p, c.in[0].p, c.in[1].p, c.in[1].NumElements(), c.out[0].vocab(0), dim, c.add[0])
}

func gpuRMSNorm(c gpuCall) (cuda.Work, error) {
	rows, dim := c.in[0].rows()
	return c.e.RMSNorm(c.in[0].DType, c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, rows, dim, float32(c.attr.(op.RMSNormAttr).Eps))
}

func gpuRMSNormBackward(c gpuCall) (cuda.Work, error) {
	dy, x, w, rstd := c.in[0], c.in[1], c.in[2], c.in[3]
	rows, dim := x.rows()
	return c.e.RMSNormBackward(x.DType, c.out[0].p, c.out[1].p, dy.p, x.p, w.p, rstd.p, rows, dim, c.add[1])
}

// gpuRopeTable is made on the host, once: its bits are those of the host's.
func gpuRopeTable(c gpuCall) (cuda.Work, error) {
	n := c.out[0].NumElements()
	return func() error {
		cos, sin := make([]float32, n), make([]float32, n)
		c.attr.(op.RopeTableAttr).Fill(cos, sin, c.out[0].at[0].Start)
		if err := c.e.Upload(c.out[0].p, bytesOf(cos)); err != nil {
			return err
		}
		return c.e.Upload(c.out[1].p, bytesOf(sin))
	}, nil
}

func gpuRope(c gpuCall) (cuda.Work, error) {
	x := c.in[0]
	var largest cuda.Ptr
	if len(c.out) > 1 { // plan.LargestWhereMade
		largest = c.out[1].p
	}
	return c.e.RopeLargest(x.DType, c.out[0].columns(), largest, x.p, c.in[1].p, c.in[2].p, x.Shape[0], x.Shape[1], x.Shape[2], x.Shape[3], c.attr.(op.RopeAttr).Inverse)
}

// gpuAttnShape is attention of consecutive queries over whole sequences of keys.
func gpuAttnShape(q, k gpuTensor) cuda.AttnShape {
	return cuda.AttnShape{
		Batch: q.Shape[0], SeqQ: q.Shape[1], SeqK: k.Shape[1], Heads: q.Shape[2], KVHeads: k.Shape[2], HeadDim: q.Shape[3],
		Scale: float32(1 / math.Sqrt(float64(q.Shape[3]))), QStart: q.at[1].Start,
	}
}

func gpuAttention(c gpuCall) (cuda.Work, error) {
	q, k, v := c.in[0], c.in[1], c.in[2]
	return c.e.Attention(q.DType, c.out[0].p, c.out[1].p, q.p, k.p, v.p, gpuAttnShape(q, k))
}

func gpuAttentionBackward(c gpuCall) (cuda.Work, error) {
	do, q, k, v, o, lse := c.in[0], c.in[1], c.in[2], c.in[3], c.in[4], c.in[5]
	return c.e.AttentionBackward(q.DType, c.out[0].p, c.out[1].p, c.out[2].columns(), do.p, q.p, k.p, v.p, o.p, lse.p, gpuAttnShape(q, k))
}

func gpuSwiGLU(c gpuCall) (cuda.Work, error) {
	return c.e.SwiGLU(c.in[0].DType, c.out[0].p, c.in[0].p, c.in[1].p, c.in[0].NumElements())
}

func gpuSwiGLUBackward(c gpuCall) (cuda.Work, error) {
	return c.e.SwiGLUBackward(c.in[0].DType, c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, c.in[2].p, c.in[0].NumElements())
}

func gpuCrossEntropy(c gpuCall) (cuda.Work, error) {
	rows, vocab := c.in[0].rows()
	return c.e.CrossEntropy(c.in[0].DType, c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, rows, vocab)
}

func gpuCrossEntropyBackward(c gpuCall) (cuda.Work, error) {
	rows, _ := c.in[0].rows()
	return c.e.CrossEntropyBackward(c.in[0].DType, c.out[0].p, c.in[0].p, c.in[1].p, c.in[2].p, c.in[3].p, rows, c.in[0].vocab(2))
}

func gpuRowMax(c gpuCall) (cuda.Work, error) {
	rows, vocab := c.in[0].rows()
	return c.e.RowMax(c.in[0].DType, c.out[0].p, c.in[0].p, rows, vocab)
}

func gpuRowSums(c gpuCall) (cuda.Work, error) {
	rows, _ := c.in[0].rows()
	return c.e.RowSums(c.in[0].DType, c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, c.in[2].p, rows, c.in[0].vocab(2))
}

func gpuRowLoss(c gpuCall) (cuda.Work, error) {
	return c.e.RowLoss(c.out[0].p, c.out[1].p, c.in[0].p, c.in[1].p, c.in[2].p, c.in[3].p, c.in[0].NumElements())
}
