package cuda

import (
	_ "embed"
	"fmt"

	"titan/libtitan/dtype"
)

//go:embed attention.cu
var attentionSource string

// AttnShape describes causal attention with grouped heads: q and o are [Batch, SeqQ, Heads, HeadDim], k and v
// [Batch, SeqK, KVHeads, HeadDim], lse [Batch, Heads, SeqQ]. KVHeads divides Heads; key-value head g serves query heads
// g·Heads/KVHeads and the following. Scale (> 0) multiplies q·k. Query row i is at position QStart+i, key row j at
// KStart+j; a query attends to keys at or before its position. A query that attends to none gets o = 0, lse = -Inf.
type AttnShape struct {
	Batch, SeqQ, SeqK       int
	Heads, KVHeads, HeadDim int
	Scale                   float32
	QStart, KStart          int
}

// Attention computes o = softmax(Scale·q·kᵀ + causal mask)·v and the natural log-sum-exp of each row, float32: by cuDNN
// in bfloat16 where it takes the shape, else by our own kernel.
func (e *Engine) Attention(t dtype.DType, o, lse, q, k, v Ptr, s AttnShape) (Work, error) {
	if t == dtype.BFloat16 && s.fused() {
		w, err := e.fusedAttention(o, lse, q, k, v, s)
		if !refused(err) {
			return w, err
		}
	}
	return e.tiledAttention(t, o, lse, q, k, v, s)
}

// AttentionBackward writes dq, dk and dv from the gradient do of the output, the inputs, and what the forward gave. A row of dv is
// a key's heads.
func (e *Engine) AttentionBackward(t dtype.DType, dq, dk Ptr, dv Columns, do, q, k, v, o, lse Ptr, s AttnShape) (Work, error) {
	if t == dtype.BFloat16 && s.fused() {
		w, err := e.fusedAttentionBackward(dq, dk, dv, do, q, k, v, o, lse, s)
		if !refused(err) {
			return w, err
		}
	}
	return e.tiledAttentionBackward(t, dq, dk, dv, do, q, k, v, o, lse, s)
}

// fused reports whether cuDNN's graph describes the shape: queries that meet their own keys, or see all keys, in the
// lengths and head dims that both its forward and its backward take without padding.
func (s AttnShape) fused() bool {
	own := s.SeqQ == s.SeqK && s.QStart == s.KStart
	return s.Batch > 0 && (own || s.seesAll()) && s.SeqQ > 0 && s.SeqQ%128 == 0 && s.SeqK%128 == 0 && s.HeadDim%8 == 0 && s.HeadDim <= 128
}

// seesAll reports whether the first query sees the last key.
func (s AttnShape) seesAll() bool { return s.SeqK > 0 && s.KStart+s.SeqK-1 <= s.QStart }

// tiled is how our own kernel runs a shape.
type tiled struct {
	t         dtype.DType
	dim, tile int // padded head dim; queries and keys of a tile
}

func (w tiled) name(kernel string) string {
	return fmt.Sprintf("%s<%s, %d, %d>", kernel, cname(w.t), w.dim, w.tile)
}

// kernels are compiled when a shape wants them.
func (w tiled) kernels() source {
	return source{"attention.cu", attentionSource, []string{w.name("attention"), w.name("attention_dq"), w.name("attention_dkv"), w.delta()}}
}

func (w tiled) delta() string { return fmt.Sprintf("attention_delta<%s>", cname(w.t)) }

func (e *Engine) tiledFor(t dtype.DType, s AttnShape) (tiled, error) {
	w := tiled{t, 16, 64}
	for w.dim < s.HeadDim {
		w.dim *= 2
	}
	if w.dim > 256 {
		return w, fmt.Errorf("cuda: attention with a head dim of %d: at most 256", s.HeadDim)
	}
	if w.dim == 256 {
		w.tile = 32 // what shared memory holds
	}
	return w, e.need(w.kernels())
}

// shared is the bytes of tiles of rows and of squares of scores.
func (w tiled) shared(rows, squares int) int {
	return 4 * (rows*w.tile*(w.dim+1) + squares*w.tile*(w.tile+1))
}

func (s AttnShape) args() []any {
	return []any{s.Batch, s.SeqQ, s.SeqK, s.Heads, s.KVHeads, s.HeadDim, s.QStart, s.KStart}
}

func (e *Engine) tiledAttention(t dtype.DType, o, lse, q, k, v Ptr, s AttnShape) (Work, error) {
	w, err := e.tiledFor(t, s)
	if err != nil {
		return nil, err
	}
	g := grid{x: blocksOf(s.SeqQ, w.tile), y: s.Batch * s.Heads, threads: 256, shared: w.shared(3, 1)}
	return e.bind(w.name("attention"), g, pack(append(append([]any{q, k, v, o, lse}, s.args()...), s.Scale)...))
}

func (e *Engine) tiledAttentionBackward(t dtype.DType, dq, dk Ptr, dv Columns, do, q, k, v, o, lse Ptr, s AttnShape) (Work, error) {
	w, err := e.tiledFor(t, s)
	if err != nil {
		return nil, err
	}
	rows := s.Batch * s.Heads * s.SeqQ
	delta, err := e.scratchFor(4 * rows)
	if err != nil {
		return nil, err
	}
	sums, err := e.bind(w.delta(), grid{x: blocksOf(rows, 8), threads: 256}, pack(append([]any{do, o, delta}, s.args()...)...))
	if err != nil {
		return nil, err
	}
	tail := append(s.args(), s.Scale)
	forQ, err := e.bind(w.name("attention_dq"), grid{x: blocksOf(s.SeqQ, w.tile), y: s.Batch * s.Heads, threads: 256, shared: w.shared(4, 1)},
		pack(append([]any{q, k, v, do, lse, delta, dq}, tail...)...))
	if err != nil {
		return nil, err
	}
	forKV, err := e.bind(w.name("attention_dkv"), grid{x: blocksOf(s.SeqK, w.tile), y: s.Batch * s.KVHeads, threads: 256, shared: w.shared(4, 2)},
		pack(append([]any{q, k, v, do, lse, delta, dk, dv.P, dv.gap(s.KVHeads * s.HeadDim)}, tail...)...))
	return sequence(sums, forQ, forKV), err
}
