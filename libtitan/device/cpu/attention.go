package cpu

import "math"

// AttnShape describes causal attention with grouped heads: q and o are [Batch, SeqQ, Heads, HeadDim], k and v
// [Batch, SeqK, KVHeads, HeadDim], lse [Batch, Heads, SeqQ]. KVHeads divides Heads; key-value head g serves
// query heads g*Heads/KVHeads and the following. Scale (> 0) multiplies q·k.
//
// Query row i is at position QStart+i, key row j at KStart+j; a query attends to keys at or before its position. A
// query that attends to none gets o = 0 and lse = -Inf.
type AttnShape struct {
	Batch, SeqQ, SeqK       int
	Heads, KVHeads, HeadDim int
	Scale                   float32
	QStart, KStart          int
}

// Attention computes o = softmax(Scale * q kᵀ + causal mask) v and the log-sum-exp of each row, by blocks of queries and
// keys with a running maximum (Dao, 2023): no matrix of scores is stored.
func (e *Engine) Attention(o, lse, q, k, v []float32, s AttnShape) {
	attention(e, o, lse, q, k, v, s)
}

// AttentionBF16 is [Engine.Attention] on bfloat16 q, k, v and o; everything inside is float32.
func (e *Engine) AttentionBF16(o []uint16, lse []float32, q, k, v []uint16, s AttnShape) {
	attention(e, o, lse, q, k, v, s)
}

// Block sizes. Both are multiples of the 6 x 16 tile's sides, and a block of scores (queries x keys) fits the L1 cache
// next to what it meets there.
const (
	queryBlock = 48
	keyBlock   = 192
)

// attn is a shape and what follows from it.
type attn struct {
	AttnShape
	width int // HeadDim padded to whole vectors of 16
	keys  int // SeqK padded to whole key blocks
}

func newAttn(s AttnShape) *attn {
	return &attn{s, roundUp(s.HeadDim, 16), roundUp(s.SeqK, keyBlock)}
}

// ahead is how many keys from k0 on, were there no end, query i attends to; negative when it is before them.
func (a *attn) ahead(i, k0 int) int { return a.QStart + i - (a.KStart + k0) + 1 }

// visible is how many keys query i attends to.
func (a *attn) visible(i int) int { return min(max(a.ahead(i, 0), 0), a.SeqK) }

// gather copies rows [lo,hi) of head h, batch b, from x [Batch, seq, heads, HeadDim] into dst [.., width], zeros at the end of
// each row.
func gather[T elem](k *kernels, a *attn, dst []float32, x []T, b, h, seq, heads, lo, hi int) {
	if lo == hi {
		return
	}
	from, ld := x[((b*seq+lo)*heads+h)*a.HeadDim:], heads*a.HeadDim
	if a.HeadDim < a.width {
		clear(dst[:(hi-lo)*a.width])
	}
	copyRowsWide(k, dst, a.width, from, ld, hi-lo, a.HeadDim)
}

// scatter is gather the other way, each value times scale.
func scatter[T elem](k *kernels, a *attn, x []T, src []float32, b, h, seq, heads, lo, hi int, scale float32) {
	if lo == hi {
		return
	}
	to, ld := x[((b*seq+lo)*heads+h)*a.HeadDim:], heads*a.HeadDim
	if scale != 1 {
		k.scale(src[:(hi-lo)*a.width], src[:(hi-lo)*a.width], scale)
	}
	if f, ok := any(to).([]float32); ok {
		k.copyRows(f, ld, src, a.width, hi-lo, a.HeadDim)
		return
	}
	for i := range hi - lo {
		storeWide(k, to[i*ld:][:a.HeadDim], src[i*a.width:][:a.HeadDim])
	}
}

// transpose turns rows x width into panels of 16 rows: width x 16 each, as the tile wants for products with the transpose.
func transpose(k *kernels, dst, src []float32, rows, width int) {
	for r := 0; r < rows; r += 16 {
		k.transpose(dst[r*width:][:16*width], 16, src[r*width:], width, 16, width)
	}
}

// heads are the keys and values of every (batch, key-value head), packed once: keys as panels of their transpose, values as rows.
type heads struct {
	*attn
	keysT, values []float32 // [Batch*KVHeads][keys*width]
}

func attention[T elem](e *Engine, o []T, lse []float32, q, k, v []T, s AttnShape) {
	a := newAttn(s)
	size := a.keys * a.width
	all := e.borrow(2*s.Batch*s.KVHeads*size, 2)
	defer e.giveBack(all)
	kv := &heads{a, all.take(s.Batch * s.KVHeads * size), all.take(s.Batch * s.KVHeads * size)}
	e.For(s.Batch*s.KVHeads, 1, func(lo, hi int) {
		ar := e.borrow(size, 1)
		defer e.giveBack(ar)
		rows := ar.zeros(size)
		for t := lo; t < hi; t++ {
			b, g := t/s.KVHeads, t%s.KVHeads
			gather(e.k, a, rows, k, b, g, s.SeqK, s.KVHeads, 0, s.SeqK)
			transpose(e.k, kv.keysT[t*size:], rows, a.keys, a.width)
			out := kv.values[t*size:][:size]
			gather(e.k, a, out, v, b, g, s.SeqK, s.KVHeads, 0, s.SeqK)
			clear(out[s.SeqK*a.width:])
		}
	})
	blocks := (s.SeqQ + queryBlock - 1) / queryBlock
	e.For(s.Batch*s.Heads*blocks, 1, func(lo, hi int) {
		ar := e.borrow(queryBlock*(2*a.width+keyBlock+4), 7)
		defer e.giveBack(ar)
		w := newAttnForward(e, kv, ar)
		for t := lo; t < hi; t++ {
			head, q0 := t/blocks, (blocks-1-t%blocks)*queryBlock // the longest first, for an even end
			b, h := head/s.Heads, head%s.Heads
			q1 := min(q0+queryBlock, s.SeqQ)
			gather(e.k, a, w.q, q, b, h, s.SeqQ, s.Heads, q0, q1)
			w.run(b*s.KVHeads+h*s.KVHeads/s.Heads, q0, q1)
			w.finish(lse[head*s.SeqQ+q0:][:q1-q0])
			scatter(e.k, a, o, w.o, b, h, s.SeqQ, s.Heads, q0, q1, 1)
		}
	})
}

// attnForward is the state of one block of queries. Exponents are to base 2: mul is Scale*log2(e), top a row's largest mul*score,
// sum the sum of p = 2^(mul*score - top), o the sum of p·v.
type attnForward struct {
	*heads
	k                    *kernels
	mul                  float32
	q, o, p              []float32
	top, sum, down, part []float32 // [queryBlock]; down and part are one key block's
}

func newAttnForward(e *Engine, kv *heads, ar *arena) *attnForward {
	return &attnForward{heads: kv, k: e.k, mul: kv.Scale * math.Log2E,
		q: ar.zeros(queryBlock * kv.width), o: ar.take(queryBlock * kv.width), p: ar.take(queryBlock * keyBlock),
		top: ar.take(queryBlock), sum: ar.take(queryBlock), down: ar.take(queryBlock), part: ar.take(queryBlock)}
}

// run goes over the keys that queries [q0,q1) of key-value head t can see.
func (w *attnForward) run(t, q0, q1 int) {
	clear(w.o)
	clear(w.sum)
	for r := range w.top {
		w.top[r] = float32(math.Inf(-1))
	}
	rows, last := q1-q0, w.visible(q1-1)
	keysT, values := w.keysT[t*w.keys*w.width:], w.values[t*w.keys*w.width:]
	for k0 := 0; k0 < last; k0 += keyBlock {
		n := min(keyBlock, last-k0)
		product(w.k, rows, roundUp(n, 16), w.width, w.q, w.width, 1, keysT[k0*w.width:], 16, 16*w.width, w.p, keyBlock, false)
		w.softmax(q0, rows, k0, n)
		product(w.k, rows, w.width, n, w.p, keyBlock, 1, values[k0*w.width:], w.width, 16, w.o, w.width, true)
	}
}

// softmax turns the scores of keys [k0,k0+n) into p, zeros where a row does not see, and rescales o and sum to the new top.
func (w *attnForward) softmax(q0, rows, k0, n int) {
	down, sum := w.down[:rows], w.part[:rows]
	w.k.softmaxRows(w.ahead(q0, k0), n, w.p, keyBlock, w.mul, w.top, down, sum)
	w.k.exp2(down, down, 1, 0)
	for r, d := range down {
		w.sum[r] = w.sum[r]*d + sum[r]
		if d != 1 {
			row := w.o[r*w.width:][:w.width]
			w.k.scale(row, row, d)
		}
	}
}

// finish divides by the sums and writes the log-sum-exp.
func (w *attnForward) finish(lse []float32) {
	for r, sum := range w.sum[:len(lse)] {
		lse[r] = float32(float64(w.top[r])*math.Ln2 + math.Log(float64(sum)))
		if sum > 0 {
			row := w.o[r*w.width:][:w.width]
			w.k.scale(row, row, 1/sum)
		}
	}
}

// product is C (+)= A·B on scratch, which has room for whole tiles: rows are rounded up to 6, cols is a multiple of 16. A's element (r,p) is a[r*rs+p*ps]; B is read in panels
// of 16 columns, bp apart, rows bs apart.
func product(k *kernels, rows, cols, depth int, a []float32, rs, ps int, b []float32, bs, bp int, c []float32, ldc int, add bool) {
	for r := 0; r < rows; r += 6 {
		k.tile6(depth, &a[r*rs], rs, ps, &b[0], bs, bp, &c[r*ldc], ldc, cols/16, add)
	}
}
