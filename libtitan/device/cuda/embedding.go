package cuda

import (
	_ "embed"
	"fmt"

	"titan/libtitan/dtype"
)

//go:embed embedding.cu
var embeddingSource string

func embeddingKernels() source {
	s := source{"embedding.cu", embeddingSource, nil}
	for _, t := range computed {
		for _, n := range []int{1, 16 / t.Size()} {
			s.kernels = append(s.kernels, embeddingKernel(t, t, n))
		}
		for _, n := range []int{1, 4} {
			s.kernels = append(s.kernels, flatKernel("embedding_backward", t, n))
		}
	}
	for _, n := range []int{1, 8} {
		s.kernels = append(s.kernels, embeddingKernel(dtype.Float32, dtype.BFloat16, n))
	}
	return s
}

func embeddingKernel(from, to dtype.DType, lanes int) string {
	return fmt.Sprintf("embedding<%s, %s, %d>", cname(from), cname(to), lanes)
}

// Vocab is the part of a vocabulary that a rank holds: ids First up to First+Size. Ids elsewhere are other ranks'.
type Vocab struct{ First, Size int }

// Embedding copies rows of table [Size, dim], of type from, to y [tokens, dim], of t, by int32 ids, zeros for ids elsewhere.
func (e *Engine) Embedding(t dtype.DType, y Ptr, from dtype.DType, table, ids Ptr, tokens int, v Vocab, dim int) (Work, error) {
	n := lanes(t, dim)
	threads := min(maxThreads, roundUp(dim/n, 32))
	return e.bind(embeddingKernel(from, t, n), grid{x: tokens, y: blocksOf(dim/n, threads), threads: threads}, pack(ids, table, y, v.First, v.Size, dim))
}

// EmbeddingBackward sums the rows of dy [tokens, dim], of t, into the rows of dw [Size, dim], float32, that they came
// from, in the order of tokens; it adds to what dw holds if add is set, else overwrites all of dw.
func (e *Engine) EmbeddingBackward(t dtype.DType, dw, dy, ids Ptr, tokens int, v Vocab, dim int, add bool) (Work, error) {
	sum, err := e.sumByIDs(t, dw, 0, dy, ids, tokens, v, dim)
	if add || err != nil {
		return sum, err
	}
	return sequence(func() error { return e.Stream.Zero(dw, 4*v.Size*dim) }, sum), nil
}

// EmbeddingBackwardRows sums the rows of dy [tokens, dim], of t, that have one id into that of the id's first token in dw
// [tokens, dim], float32, in the order of tokens: the bits of EmbeddingBackward. Other rows are not written. rows [Size], int32, become
// for each id its first token, -1 if there is none.
func (e *Engine) EmbeddingBackwardRows(t dtype.DType, dw, rows, dy, ids Ptr, tokens int, v Vocab, dim int) (Work, error) {
	sum, err := e.sumByIDs(t, dw, rows, dy, ids, tokens, v, dim)
	if err != nil {
		return nil, err
	}
	return sequence(func() error { return e.Stream.Set(rows, 0xff, 4*v.Size) }, sum), nil
}

func (e *Engine) sumByIDs(t dtype.DType, dw, rows, dy, ids Ptr, tokens int, v Vocab, dim int) (Work, error) {
	n := 4
	if dim%n != 0 {
		n = 1
	}
	threads := maxThreads
	if dim <= 4*maxThreads { // so that several blocks share the rows of a frequent id
		threads = 64
	}
	return e.bind(flatKernel("embedding_backward", t, n), grid{x: tokens, y: blocksOf(dim/n, threads), threads: threads}, pack(dy, ids, dw, rows, tokens, v.First, v.Size, dim))
}
