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
	keyBlock   = 96
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

// visible is how many of the keys from k0 on query i attends to.
func (a *attn) visible(i, k0 int) int { return min(max(a.QStart+i-(a.KStart+k0)+1, 0), a.SeqK-k0) }

// gather copies rows [lo,hi) of head h, batch b, from x [Batch, seq, heads, HeadDim] into dst [.., width], zeros at the end of
// each row.
func gather[T elem](k *kernels, a *attn, dst []float32, x []T, b, h, seq, heads, lo, hi int) {
	for i := lo; i < hi; i++ {
		row := dst[(i-lo)*a.width:][:a.width]
		copyWide(k, row[:a.HeadDim], x[((b*seq+i)*heads+h)*a.HeadDim:][:a.HeadDim])
		clear(row[a.HeadDim:])
	}
}

// scatter is gather the other way, each value times scale.
func scatter[T elem](k *kernels, a *attn, x []T, src []float32, b, h, seq, heads, lo, hi int, scale float32) {
	for i := lo; i < hi; i++ {
		row := src[(i-lo)*a.width:][:a.HeadDim]
		if scale != 1 {
			k.scale(row, row, scale)
		}
		storeWide(k, x[((b*seq+i)*heads+h)*a.HeadDim:][:a.HeadDim], row)
	}
}

// transpose turns rows x width into panels of 16 rows: width x 16 each, as the tile wants for products with the transpose.
func transpose(k *kernels, dst, src []float32, rows, width int) {
	for r := 0; r < rows; r += 16 {
		k.packCols(dst[r*width:][:16*width], src[r*width:], width, 16, width, 16)
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
		ar := e.borrow(queryBlock*(2*a.width+keyBlock+2), 5)
		defer e.giveBack(ar)
		w := &attnForward{heads: kv, k: e.k, scale: newExpScale(s.Scale), q: ar.zeros(queryBlock * a.width), o: ar.take(queryBlock * a.width),
			p: ar.take(queryBlock * keyBlock), top: ar.take(queryBlock), sum: ar.take(queryBlock)}
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

// attnForward is the state of one block of queries: o is the sum of p·v, top the largest score and sum the sum of p, per row,
// p being exp(Scale*(score - top)).
type attnForward struct {
	*heads
	k        *kernels
	scale    *expScale
	q, o, p  []float32
	top, sum []float32
}

// run goes over the keys that queries [q0,q1) of key-value head t can see.
func (w *attnForward) run(t, q0, q1 int) {
	clear(w.o)
	clear(w.sum)
	for r := range w.top {
		w.top[r] = float32(math.Inf(-1))
	}
	rows := roundUp(q1-q0, 6)
	keysT, values := w.keysT[t*w.keys*w.width:], w.values[t*w.keys*w.width:]
	for k0 := 0; k0 < w.visible(q1-1, 0); k0 += keyBlock {
		n := min(keyBlock, w.visible(q1-1, k0))
		cols := roundUp(n, 16)
		product(w.k, rows, cols, w.width, w.q, w.width, 1, keysT[k0*w.width:], 16, 16*w.width, w.p, keyBlock, false)
		for r := range q1 - q0 {
			w.softmax(r, min(w.visible(q0+r, k0), n), cols)
		}
		product(w.k, rows, w.width, n, w.p, keyBlock, 1, values[k0*w.width:], w.width, 16, w.o, w.width, true)
	}
}

// softmax turns row r's scores of n visible keys into p, and rescales what the row has summed so far.
func (w *attnForward) softmax(r, n, cols int) {
	p := w.p[r*keyBlock:][:cols]
	if n > 0 {
		top := max(w.top[r], w.k.max(p[:n]))
		if top > w.top[r] {
			down := float32(math.Exp(float64(w.Scale) * float64(w.top[r]-top)))
			w.sum[r] *= down
			row := w.o[r*w.width:][:w.width]
			w.k.scale(row, row, down)
			w.top[r] = top
		}
		w.sum[r] += w.k.exp(p[:n], p[:n], top, w.scale)
	}
	clear(p[n:])
}

// finish divides by the sums and writes the log-sum-exp.
func (w *attnForward) finish(lse []float32) {
	for r := range lse {
		lse[r] = float32(float64(w.Scale)*float64(w.top[r]) + math.Log(float64(w.sum[r])))
		if w.sum[r] > 0 {
			row := w.o[r*w.width:][:w.width]
			w.k.scale(row, row, 1/w.sum[r])
		}
	}
}

// product is C (+)= A·B on padded scratch: rows a multiple of 6, cols of 16. A's element (r,p) is a[r*rs+p*ps]; B is read in panels
// of 16 columns, bp apart, rows bs apart.
func product(k *kernels, rows, cols, depth int, a []float32, rs, ps int, b []float32, bs, bp int, c []float32, ldc int, add bool) {
	for r := 0; r < rows; r += 6 {
		k.tile6(depth, &a[r*rs], rs, ps, &b[0], bs, bp, &c[r*ldc], ldc, cols/16, add)
	}
}
