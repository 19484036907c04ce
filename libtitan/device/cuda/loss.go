package cuda

import (
	_ "embed"

	"titan/libtitan/dtype"
)

//go:embed loss.cu
var lossSource string

func lossKernels(clusters bool) source {
	s := source{"loss.cu", lossSource, []string{"sum_losses", "row_loss"}}
	if clusters {
		s.kernels = append(s.kernels, wideLoss)
	}
	for _, t := range computed {
		for _, n := range []int{1, 16 / t.Size()} {
			for _, name := range []string{"cross_entropy", "cross_entropy_backward", "cross_entropy_both", "row_max", "row_sums"} {
				s.kernels = append(s.kernels, flatKernel(name, t, n))
			}
		}
	}
	return s
}

// lossGrid is a block for each row of vocab logits.
func lossGrid(t dtype.DType, rows, vocab int) grid {
	return grid{x: rows, threads: min(512, max(roundUp(blocksOf(vocab, lanes(t, vocab)), 32), 32))}
}

// withSum adds to w the sum of what it leaves in losses [rows].
func (e *Engine) withSum(w Work, err error, loss, losses Ptr, rows int) (Work, error) {
	if err != nil {
		return nil, err
	}
	sum, err := e.bind("sum_losses", grid{x: 1, threads: 1024}, pack(losses, loss, rows))
	return sequence(w, sum), err
}

// CrossEntropy writes each row's log-sum-exp and the sum over rows of lse - logits[label]: logits are [rows, vocab] of
// t, labels int32 in [0, vocab), or -100 for a row that does not count; lse [rows] and loss, a scalar, are float32.
func (e *Engine) CrossEntropy(t dtype.DType, loss, lse, logits, labels Ptr, rows, vocab int) (Work, error) {
	losses, err := e.scratchFor(4 * rows)
	if err != nil {
		return nil, err
	}
	w, err := e.bind(flatKernel("cross_entropy", t, lanes(t, vocab)), lossGrid(t, rows, vocab), pack(logits, labels, lse, losses, vocab))
	return e.withSum(w, err, loss, losses, rows)
}

// CrossEntropyBackward writes dlogits = scale·(softmax(logits) - onehot(label)), zeros in rows that do not count; scale
// is one float32 on the device, dlogits may be logits. v is the part of the vocabulary that logits [rows, v.Size] are of.
func (e *Engine) CrossEntropyBackward(t dtype.DType, dlogits, logits, labels, lse, scale Ptr, rows int, v Vocab) (Work, error) {
	return e.bind(flatKernel("cross_entropy_backward", t, lanes(t, v.Size)), lossGrid(t, rows, v.Size), pack(logits, labels, lse, scale, dlogits, v.Size, v.First))
}

// wideLoss has wideBlocks blocks for a row of bfloat16 that takes more than wideRow bytes. With a block each, 132
// multiprocessors read 135 MB of llama3's rows before they come to the first again, and the cache holds 50.
const (
	wideLoss   = "cross_entropy_both_wide<bf16, 8>"
	wideRow    = 64 << 10
	wideBlocks = 4
)

// CrossEntropyBoth is CrossEntropy and its backward in one launch.
func (e *Engine) CrossEntropyBoth(t dtype.DType, dlogits, loss, lse, logits, labels, scale Ptr, rows, vocab int) (Work, error) {
	losses, err := e.scratchFor(4 * rows)
	if err != nil {
		return nil, err
	}
	kernel, g := flatKernel("cross_entropy_both", t, lanes(t, vocab)), lossGrid(t, rows, vocab)
	if e.clusters() && t == dtype.BFloat16 && lanes(t, vocab) == 8 && 2*vocab > wideRow {
		kernel, g = wideLoss, grid{x: wideBlocks * rows, threads: 512}
	}
	w, err := e.bind(kernel, g, pack(logits, labels, lse, losses, scale, dlogits, vocab))
	return e.withSum(w, err, loss, losses, rows)
}

// RowMax writes the largest logit of each row of a part of the vocabulary.
func (e *Engine) RowMax(t dtype.DType, top, logits Ptr, rows, vocab int) (Work, error) {
	return e.bind(flatKernel("row_max", t, lanes(t, vocab)), lossGrid(t, rows, vocab), pack(logits, top, vocab))
}

// RowSums writes, for each row, the sum of exp(logit - top) over this part of the vocabulary and the label's logit, zero
// where it is not here or does not count.
func (e *Engine) RowSums(t dtype.DType, sums, picked, logits, labels, top Ptr, rows int, v Vocab) (Work, error) {
	return e.bind(flatKernel("row_sums", t, lanes(t, v.Size)), lossGrid(t, rows, v.Size), pack(logits, labels, top, sums, picked, v.Size, v.First))
}

// RowLoss writes the summed loss and the log-sum-exp of each row from the tops, sums and picked logits of all parts.
func (e *Engine) RowLoss(loss, lse, top, sums, picked, labels Ptr, rows int) (Work, error) {
	return e.bind("row_loss", grid{x: 1, threads: 1024}, pack(top, sums, picked, labels, loss, lse, rows))
}
