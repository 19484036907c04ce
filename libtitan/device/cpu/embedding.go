package cpu

import "fmt"

// Elsewhere stands for an id or a label that lies in another rank's part of the vocabulary.
const Elsewhere = -1

// Embedding copies row ids[i] of w [vocab, dim] to row i of y [len(ids), dim], zeros for [Elsewhere]. Any other id outside
// [0,vocab) is an error.
func (e *Engine) Embedding(y, w []float32, ids []int32, vocab, dim int) error {
	return embedding(e, y, w, ids, vocab, dim)
}

// EmbeddingBF16 is [Engine.Embedding] on bfloat16.
func (e *Engine) EmbeddingBF16(y, w []uint16, ids []int32, vocab, dim int) error {
	return embedding(e, y, w, ids, vocab, dim)
}

// EmbeddingBackward sums the rows of dy [len(ids), dim] into the rows of dw [vocab, dim] that they came from, in the order of
// tokens; it adds to what dw holds when accumulate is set, else overwrites all of dw.
func (e *Engine) EmbeddingBackward(dw, dy []float32, ids []int32, vocab, dim int, accumulate bool) error {
	return embeddingBackward(e, dw, dy, ids, vocab, dim, accumulate)
}

// EmbeddingBackwardBF16 is [Engine.EmbeddingBackward] on a bfloat16 dy; dw stays float32.
func (e *Engine) EmbeddingBackwardBF16(dw []float32, dy []uint16, ids []int32, vocab, dim int, accumulate bool) error {
	return embeddingBackward(e, dw, dy, ids, vocab, dim, accumulate)
}

func checkIDs(ids []int32, vocab int) error {
	for i, id := range ids {
		if id < Elsewhere || int(id) >= vocab {
			return fmt.Errorf("embedding: id %d of token %d: want 0..%d (is the tokenizer the model's?)", id, i, vocab-1)
		}
	}
	return nil
}

func embedding[T elem](e *Engine, y, w []T, ids []int32, vocab, dim int) error {
	if err := checkIDs(ids, vocab); err != nil {
		return err
	}
	e.For(len(ids), rowGrain, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if ids[i] == Elsewhere {
				clear(y[i*dim:][:dim])
				continue
			}
			copy(y[i*dim:][:dim], w[int(ids[i])*dim:][:dim])
		}
	})
	return nil
}

func embeddingBackward[T elem](e *Engine, dw []float32, dy []T, ids []int32, vocab, dim int, accumulate bool) error {
	if err := checkIDs(ids, vocab); err != nil {
		return err
	}
	first, tokens := tokensByID(ids, vocab)
	e.For(vocab, rowGrain, func(lo, hi int) {
		ar := e.borrow(dim, 1)
		defer e.giveBack(ar)
		wide := ar.take(dim)
		for v := lo; v < hi; v++ {
			row := dw[v*dim:][:dim]
			if !accumulate {
				clear(row)
			}
			for _, t := range tokens[first[v]:first[v+1]] {
				e.k.add(row, row, widened(e.k, wide, dy[int(t)*dim:][:dim]))
			}
		}
	})
	return nil
}

// tokensByID sorts token positions by id, stably: those of id v are tokens[first[v]:first[v+1]].
func tokensByID(ids []int32, vocab int) (first, tokens []int32) {
	first, tokens = make([]int32, vocab+2), make([]int32, len(ids))
	for _, id := range ids {
		if id != Elsewhere {
			first[id+2]++
		}
	}
	for v := 2; v < len(first); v++ {
		first[v] += first[v-1]
	}
	for t, id := range ids {
		if id != Elsewhere {
			tokens[first[id+1]] = int32(t)
			first[id+1]++
		}
	}
	return first[:vocab+1], tokens
}
