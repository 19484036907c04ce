package cpu

import (
	"fmt"
	"math"
)

// Ignored is the label that takes no part in the loss, as PyTorch's ignore_index.
const Ignored = -100

// CrossEntropy writes each row's log-sum-exp and, when perRow is not nil, its loss lse - logits[label] (0 for [Ignored]), and
// returns the sum of the losses in float64, added in row order. logits are [rows, vocab].
// A label outside [0,vocab) that is not Ignored is an error.
func (e *Engine) CrossEntropy(perRow, lse, logits []float32, labels []int32, rows, vocab int) (float64, error) {
	return crossEntropy(e, perRow, lse, logits, labels, rows, vocab)
}

// CrossEntropyBF16 is [Engine.CrossEntropy] on bfloat16 logits, computed in float32.
func (e *Engine) CrossEntropyBF16(perRow, lse []float32, logits []uint16, labels []int32, rows, vocab int) (float64, error) {
	return crossEntropy(e, perRow, lse, logits, labels, rows, vocab)
}

// CrossEntropyBackward writes dlogits = scale*(softmax(logits) - onehot(label)), zeros in ignored rows; dlogits may be logits.
// Labels are those the forward accepted, or [Elsewhere].
func (e *Engine) CrossEntropyBackward(dlogits, logits []float32, labels []int32, lse []float32, scale float32, rows, vocab int) {
	crossEntropyBackward(e, dlogits, logits, labels, lse, scale, rows, vocab)
}

// CrossEntropyBackwardBF16 is [Engine.CrossEntropyBackward] on bfloat16.
func (e *Engine) CrossEntropyBackwardBF16(dlogits, logits []uint16, labels []int32, lse []float32, scale float32, rows, vocab int) {
	crossEntropyBackward(e, dlogits, logits, labels, lse, scale, rows, vocab)
}

// lossGrain is the rows of a task, lossSpan the columns handled at a time: rows may be 128k wide, scratch is not.
const (
	lossGrain = 16
	lossSpan  = 4096
)

func crossEntropy[T elem](e *Engine, perRow, lse []float32, logits []T, labels []int32, rows, vocab int) (float64, error) {
	for i, l := range labels[:rows] {
		if l != Ignored && (l < 0 || int(l) >= vocab) {
			return 0, fmt.Errorf("cross entropy: label %d of token %d: want 0..%d, or %d to ignore it", l, i, vocab-1, Ignored)
		}
	}
	losses := make([]float64, rows)
	e.For(rows, lossGrain, func(lo, hi int) {
		ar := e.borrow(2*lossSpan, 2)
		defer e.giveBack(ar)
		buf, wide := ar.take(lossSpan), ar.take(lossSpan)
		for i := lo; i < hi; i++ {
			row := logits[i*vocab:][:vocab]
			l := logSumExp(e.k, row, buf, wide)
			lse[i] = float32(l)
			if labels[i] != Ignored {
				losses[i] = l - float64(widened(e.k, wide, row[labels[i]:][:1])[0])
			}
		}
	})
	var sum float64
	for i, l := range losses {
		sum += l
		if perRow != nil {
			perRow[i] = float32(l)
		}
	}
	return sum, nil
}

// logSumExp is log(sum(exp(row))), the largest element taken out first.
func logSumExp[T elem](k *kernels, row []T, buf, wide []float32) float64 {
	top := float32(math.Inf(-1))
	for s := 0; s < len(row); s += lossSpan {
		top = max(top, k.max(widened(k, wide, row[s:min(s+lossSpan, len(row))])))
	}
	var sum float64
	sub := top * math.Log2E
	for s := 0; s < len(row); s += lossSpan {
		x := widened(k, wide, row[s:min(s+lossSpan, len(row))])
		sum += float64(k.exp2(buf[:len(x)], x, math.Log2E, sub))
	}
	return float64(sub)*math.Ln2 + math.Log(sum)
}

func crossEntropyBackward[T elem](e *Engine, dlogits, logits []T, labels []int32, lse []float32, scale float32, rows, vocab int) {
	e.For(rows, lossGrain, func(lo, hi int) {
		ar := e.borrow(2*lossSpan, 2)
		defer e.giveBack(ar)
		buf, wide := ar.take(lossSpan), ar.take(lossSpan)
		for i := lo; i < hi; i++ {
			out := dlogits[i*vocab:][:vocab]
			if labels[i] == Ignored {
				clear(out)
				continue
			}
			for s := 0; s < vocab; s += lossSpan {
				end := min(s+lossSpan, vocab)
				d := buf[:end-s]
				e.k.exp2(d, widened(e.k, wide, logits[i*vocab+s:][:end-s]), math.Log2E, lse[i]*math.Log2E)
				if at := int(labels[i]) - s; at >= 0 && at < len(d) {
					d[at]--
				}
				e.k.scale(d, d, scale)
				storeWide(e.k, out[s:end], d)
			}
		}
	})
}

// RowMax writes the largest logit of each row, -Inf for a row of none. logits are [rows, vocab].
func (e *Engine) RowMax(top, logits []float32, rows, vocab int) { rowMax(e, top, logits, rows, vocab) }

// RowMaxBF16 is [Engine.RowMax] on bfloat16 logits.
func (e *Engine) RowMaxBF16(top []float32, logits []uint16, rows, vocab int) {
	rowMax(e, top, logits, rows, vocab)
}

// RowSums writes, for each row, the sum of exp(logit-top) and the label's logit, zero where the label is [Ignored] or [Elsewhere].
func (e *Engine) RowSums(sums, picked, logits []float32, labels []int32, top []float32, rows, vocab int) {
	rowSums(e, sums, picked, logits, labels, top, rows, vocab)
}

// RowSumsBF16 is [Engine.RowSums] on bfloat16 logits.
func (e *Engine) RowSumsBF16(sums, picked []float32, logits []uint16, labels []int32, top []float32, rows, vocab int) {
	rowSums(e, sums, picked, logits, labels, top, rows, vocab)
}

func rowMax[T elem](e *Engine, top []float32, logits []T, rows, vocab int) {
	e.For(rows, lossGrain, func(lo, hi int) {
		ar := e.borrow(lossSpan, 1)
		defer e.giveBack(ar)
		wide := ar.take(lossSpan)
		for i := lo; i < hi; i++ {
			top[i] = float32(math.Inf(-1))
			for s := 0; s < vocab; s += lossSpan {
				top[i] = max(top[i], e.k.max(widened(e.k, wide, logits[i*vocab+s:][:min(lossSpan, vocab-s)])))
			}
		}
	})
}

func rowSums[T elem](e *Engine, sums, picked []float32, logits []T, labels []int32, top []float32, rows, vocab int) {
	e.For(rows, lossGrain, func(lo, hi int) {
		ar := e.borrow(2*lossSpan, 2)
		defer e.giveBack(ar)
		buf, wide := ar.take(lossSpan), ar.take(lossSpan)
		for i := lo; i < hi; i++ {
			var sum float64
			for s := 0; s < vocab; s += lossSpan {
				x := widened(e.k, wide, logits[i*vocab+s:][:min(lossSpan, vocab-s)])
				sum += float64(e.k.exp2(buf[:len(x)], x, math.Log2E, top[i]*math.Log2E))
			}
			sums[i], picked[i] = float32(sum), 0
			if l := labels[i]; l >= 0 {
				picked[i] = widened(e.k, wide, logits[i*vocab+int(l):][:1])[0]
			}
		}
	})
}
