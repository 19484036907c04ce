package cpu

import "math"

// AttentionBackward writes dq, dk and dv from the gradient do of the output, the inputs, and what the forward returned.
// Scores are computed again block by block. Gradients of a key-value head are summed over its query heads in order.
func (e *Engine) AttentionBackward(dq, dk, dv, do, q, k, v, o, lse []float32, s AttnShape) {
	attentionBackward(e, dq, dk, dv, do, q, k, v, o, lse, s)
}

// AttentionBackwardBF16 is [Engine.AttentionBackward] on bfloat16 tensors (lse stays float32).
func (e *Engine) AttentionBackwardBF16(dq, dk, dv, do, q, k, v, o []uint16, lse []float32, s AttnShape) {
	attentionBackward(e, dq, dk, dv, do, q, k, v, o, lse, s)
}

func attentionBackward[T elem](e *Engine, dq, dk, dv, do, q, k, v, o []T, lse []float32, s AttnShape) {
	a := newAttn(s)
	queries := roundUp(s.SeqQ, queryBlock)
	kvSize, qSize := a.keys*a.width, queries*a.width
	e.For(s.Batch*s.KVHeads, 1, func(lo, hi int) {
		ar := e.borrow(6*kvSize+3*qSize+2*queries+2*queryBlock*keyBlock, 14)
		defer e.giveBack(ar)
		w := &attnBackward{attn: a, k: e.k, mul: s.Scale * math.Log2E,
			keyRows: ar.zeros(kvSize), valueRows: ar.zeros(kvSize), keysT: ar.take(kvSize), valuesT: ar.take(kvSize), dk: ar.take(kvSize), dv: ar.take(kvSize),
			q: ar.zeros(qSize), do: ar.zeros(qSize), dq: ar.take(qSize), shift: ar.take(queries), delta: ar.take(queries),
			p: ar.take(queryBlock * keyBlock), ds: ar.take(queryBlock * keyBlock)}
		for t := lo; t < hi; t++ {
			b, g := t/s.KVHeads, t%s.KVHeads
			gather(e.k, a, w.keyRows, k, b, g, s.SeqK, s.KVHeads, 0, s.SeqK)
			gather(e.k, a, w.valueRows, v, b, g, s.SeqK, s.KVHeads, 0, s.SeqK)
			transpose(e.k, w.keysT, w.keyRows, a.keys, a.width)
			transpose(e.k, w.valuesT, w.valueRows, a.keys, a.width)
			clear(w.dk)
			clear(w.dv)
			group := s.Heads / s.KVHeads
			for h := g * group; h < (g+1)*group; h++ {
				gather(e.k, a, w.q, q, b, h, s.SeqQ, s.Heads, 0, s.SeqQ)
				gather(e.k, a, w.do, do, b, h, s.SeqQ, s.Heads, 0, s.SeqQ)
				clear(w.dq)
				gather(e.k, a, w.dq, o, b, h, s.SeqQ, s.Heads, 0, s.SeqQ) // o lies in dq until delta is known
				w.rowTerms(lse[(b*s.Heads+h)*s.SeqQ:][:s.SeqQ])
				clear(w.dq)
				for q0 := 0; q0 < s.SeqQ; q0 += queryBlock {
					w.block(q0, min(q0+queryBlock, s.SeqQ))
				}
				scatter(e.k, a, dq, w.dq, b, h, s.SeqQ, s.Heads, 0, s.SeqQ, s.Scale)
			}
			scatter(e.k, a, dk, w.dk, b, g, s.SeqK, s.KVHeads, 0, s.SeqK, s.Scale)
			scatter(e.k, a, dv, w.dv, b, g, s.SeqK, s.KVHeads, 0, s.SeqK, 1)
		}
	})
}

// attnBackward is the state of one key-value head and of the query head it is working on. With p = 2^(mul*score - shift), mul = Scale*log2(e):
// dv = pᵀ·do, ds = p*(do·vᵀ - delta), dq = Scale * ds·k, dk = Scale * dsᵀ·q. Scale is applied on the way out.
type attnBackward struct {
	*attn
	k                                          *kernels
	mul                                        float32
	keyRows, valueRows, keysT, valuesT, dk, dv []float32
	q, do, dq                                  []float32
	shift, delta                               []float32 // lse*log2(e) and sum(do*o), per query
	p, ds                                      []float32
}

func (w *attnBackward) rowTerms(lse []float32) {
	for i, l := range lse {
		w.shift[i] = l * math.Log2E
		w.delta[i] = w.k.dot(w.do[i*w.width:][:w.width], w.dq[i*w.width:][:w.width])
	}
}

// block adds the terms of queries [q0,q1) to dq, dk and dv.
func (w *attnBackward) block(q0, q1 int) {
	rows, width := roundUp(q1-q0, 6), w.width
	q, do, dq := w.q[q0*width:], w.do[q0*width:], w.dq[q0*width:]
	last := w.visible(q1 - 1)
	for k0 := 0; k0 < last; k0 += keyBlock {
		n, at := min(keyBlock, last-k0), k0*width
		cols, keys := roundUp(n, 16), roundUp(n, 6)
		product(w.k, rows, cols, width, q, width, 1, w.keysT[at:], 16, 16*width, w.p, keyBlock, false)
		product(w.k, rows, cols, width, do, width, 1, w.valuesT[at:], 16, 16*width, w.ds, keyBlock, false)
		w.k.softGradRows(w.ahead(q0, k0), n, w.p, w.ds, keyBlock, w.mul, w.shift[q0:q1], w.delta[q0:q1])
		product(w.k, rows, width, n, w.ds, keyBlock, 1, w.keyRows[at:], width, 16, dq, width, true)
		product(w.k, keys, width, q1-q0, w.p, 1, keyBlock, do, width, 16, w.dv[at:], width, true)
		product(w.k, keys, width, q1-q0, w.ds, 1, keyBlock, q, width, 16, w.dk[at:], width, true)
	}
}
