package exec

import (
	"math"

	"titan/libtitan/device/cpu"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// queryRun is a range of a rank's query rows at consecutive positions.
type queryRun struct{ row, position, count int }

// queryRuns splits the rows that a rank holds of q into runs.
func queryRuns(q tensor, seqLen, pieces int) []queryRun {
	first, n := q.at[1].Start, q.Shape[1]
	if pieces == 0 {
		return []queryRun{{0, first, n}}
	}
	var out []queryRun
	for i := range n {
		p := placement.HeadTail(seqLen, pieces, first+i)
		if k := len(out) - 1; k >= 0 && out[k].position+out[k].count == p {
			out[k].count++
			continue
		}
		out = append(out, queryRun{i, p, 1})
	}
	return out
}

// attention is causal attention of some query rows over whole sequences of keys, in one element type.
type attention struct {
	e          *cpu.Engine
	q, k, v, o tensor
	lse        []float32
	shape      cpu.AttnShape
	runs       []queryRun
	order      []int    // key row of each position; nil: they are in order
	room       *scratch // for the keys in order, and more
}

func newAttention(c call, q, k, v, o tensor, lse []float32) attention {
	pieces := c.attr.(op.AttentionAttr).Pieces
	a := attention{e: c.e, q: q, k: k, v: v, o: o, lse: lse, room: c.room, shape: cpu.AttnShape{
		Batch: q.Shape[0], SeqQ: q.Shape[1], SeqK: k.Shape[1], Heads: q.Shape[2], KVHeads: k.Shape[2], HeadDim: q.Shape[3],
		Scale: float32(1 / math.Sqrt(float64(q.Shape[3]))),
	}}
	a.runs = queryRuns(q, k.Shape[1], pieces)
	if pieces > 0 {
		a.order = make([]int, k.Shape[1])
		for i := range a.order {
			a.order[placement.HeadTail(len(a.order), pieces, i)] = i
		}
	}
	return a
}

// whole reports whether one call does it all.
func (a *attention) whole() bool {
	return a.order == nil && len(a.runs) == 1 && a.runs[0].position == 0
}

func bindAttention(c call) (kernel, error) {
	a := newAttention(c, c.in[0], c.in[1], c.in[2], c.out[0], c.out[1].f32())
	if a.q.narrow() {
		return sure(func() { forwardRuns(&a, a.q.bf16(), a.k.bf16(), a.v.bf16(), a.o.bf16(), a.e.AttentionBF16) }), nil
	}
	return sure(func() { forwardRuns(&a, a.q.f32(), a.k.f32(), a.v.f32(), a.o.f32(), a.e.Attention) }), nil
}

// forwardRuns computes each run of each row of the batch by itself where the positions are not 0, 1, ...
func forwardRuns[T any](a *attention, q, k, v, o []T, kernel func(o []T, lse []float32, q, k, v []T, s cpu.AttnShape)) {
	if a.whole() {
		kernel(o, a.lse, q, k, v, a.shape)
		return
	}
	s := a.shape
	s.Batch = 1
	wide, narrow := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	keys := s.SeqK * narrow
	room := *a.room
	kb, vb, stats := takeOf[T](&room, keys), takeOf[T](&room, keys), takeOf[float32](&room, s.Heads*s.SeqQ)
	for b := range a.shape.Batch {
		reorder(kb, k[b*keys:][:keys], a.order, narrow)
		reorder(vb, v[b*keys:][:keys], a.order, narrow)
		for _, r := range a.runs {
			s.SeqQ, s.QStart = r.count, r.position
			at := (b*a.shape.SeqQ + r.row) * wide
			lse := stats[:s.Heads*r.count]
			kernel(o[at:][:r.count*wide], lse, q[at:][:r.count*wide], kb, vb, s)
			for h := range s.Heads {
				copy(a.lse[(b*s.Heads+h)*a.shape.SeqQ+r.row:], lse[h*r.count:][:r.count])
			}
		}
	}
}

// reorder puts rows of width elements in the order of their positions.
func reorder[T any](dst, x []T, order []int, width int) {
	if order == nil {
		copy(dst, x)
		return
	}
	for p, i := range order {
		copy(dst[p*width:][:width], x[i*width:])
	}
}

func bindAttentionBackward(c call) (kernel, error) {
	do, dq, dk, dv := c.in[0], c.out[0], c.out[1], c.out[2]
	a := newAttention(c, c.in[1], c.in[2], c.in[3], c.in[4], c.in[5].f32())
	if a.q.narrow() {
		return sure(func() {
			backwardRuns(&a, dq.bf16(), dk.bf16(), dv.bf16(), do.bf16(), a.q.bf16(), a.k.bf16(), a.v.bf16(), a.o.bf16(), a.e.AttentionBackwardBF16,
				func(y, x []uint16) { a.e.AddBF16(y, y, x) })
		}), nil
	}
	return sure(func() {
		backwardRuns(&a, dq.f32(), dk.f32(), dv.f32(), do.f32(), a.q.f32(), a.k.f32(), a.v.f32(), a.o.f32(), a.e.AttentionBackward,
			func(y, x []float32) { a.e.Add(y, y, x) })
	}), nil
}

// backwardRuns is the backward of forwardRuns; the keys' gradients are summed over the runs in their order.
func backwardRuns[T any](a *attention, dq, dk, dv, do, q, k, v, o []T, kernel func(dq, dk, dv, do, q, k, v, o []T, lse []float32, s cpu.AttnShape), add func(y, x []T)) {
	if a.whole() {
		kernel(dq, dk, dv, do, q, k, v, o, a.lse, a.shape)
		return
	}
	s := a.shape
	s.Batch = 1
	wide, narrow := s.Heads*s.HeadDim, s.KVHeads*s.HeadDim
	keys := s.SeqK * narrow
	room := *a.room
	kb, vb, sumK, sumV := takeOf[T](&room, keys), takeOf[T](&room, keys), takeOf[T](&room, keys), takeOf[T](&room, keys)
	partK, partV, stats := takeOf[T](&room, keys), takeOf[T](&room, keys), takeOf[float32](&room, s.Heads*s.SeqQ)
	for b := range a.shape.Batch {
		reorder(kb, k[b*keys:][:keys], a.order, narrow)
		reorder(vb, v[b*keys:][:keys], a.order, narrow)
		for i, r := range a.runs {
			s.SeqQ, s.QStart = r.count, r.position
			at := (b*a.shape.SeqQ + r.row) * wide
			n := r.count * wide
			lse := stats[:s.Heads*r.count]
			for h := range s.Heads {
				copy(lse[h*r.count:][:r.count], a.lse[(b*s.Heads+h)*a.shape.SeqQ+r.row:])
			}
			if i == 0 {
				kernel(dq[at:][:n], sumK, sumV, do[at:][:n], q[at:][:n], kb, vb, o[at:][:n], lse, s)
				continue
			}
			kernel(dq[at:][:n], partK, partV, do[at:][:n], q[at:][:n], kb, vb, o[at:][:n], lse, s)
			add(sumK, partK)
			add(sumV, partV)
		}
		unordered(dk[b*keys:][:keys], sumK, a.order, narrow)
		unordered(dv[b*keys:][:keys], sumV, a.order, narrow)
	}
}

// unordered undoes reorder.
func unordered[T any](dst, x []T, order []int, width int) {
	if order == nil {
		copy(dst, x)
		return
	}
	for p, i := range order {
		copy(dst[i*width:][:width], x[p*width:][:width])
	}
}
