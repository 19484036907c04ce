package exec

import (
	"errors"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/device/cpu"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/op"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// gpuMeeting is causal attention under context parallelism: a run of this rank's queries meets a run of keys at a time,
// and what that makes is joined by its log-sum-exp; sums are float32. Of two runs of different positions the queries see
// all keys or none; a run meets itself causally. The keys of all ranks are there, gathered, or go round (Liu et al., 2023).
type gpuMeeting struct {
	*gpuPeers
	meeting
	c       gpuCall
	what    string
	turns   bool // keys and values go round
	q, k, v gpuTensor
	room    cuda.Ptr
	works   []cuda.Work
	bad     error
}

// meets reports whether a step is attention under context parallelism.
func meets(s *plan.Step) bool {
	a, ok := s.Node.Attr.(op.AttentionAttr)
	return ok && (a.Ring || a.Pieces > 0)
}

func goesRound(s *plan.Step) bool {
	a, ok := s.Node.Attr.(op.AttentionAttr)
	return ok && a.Ring
}

// ring is the group of those among whom keys and values go round.
func (p *gpuPeers) ring() comm.Group {
	g := comm.Group{Name: placement.CP.String() + " ring"}
	for _, rank := range p.prog.Mesh.Group(p.prog.Coord, placement.CP) {
		g.Ranks = append(g.Ranks, world(p.prog, p.prog.PP, rank))
	}
	return g
}

func (p *gpuPeers) bindMeeting(s *plan.Step, c gpuCall, room cuda.Ptr) (cuda.Work, error) {
	in := c.in
	if s.Node.Op.Name == "attention_backward" {
		in = in[1:]
	}
	a := c.attr.(op.AttentionAttr)
	m := &gpuMeeting{gpuPeers: p, c: c, what: ringName(s), turns: a.Ring, q: in[0], k: in[1], v: in[2], room: room}
	m.meeting = newMeeting(p.prog, a, m.q.tensor, m.k.tensor)
	if p.round == nil && m.turns {
		var err error
		if p.round, err = newGPULane(p.e); err != nil {
			return nil, err
		}
	}
	if s.Node.Op.Name == "attention_backward" {
		m.backward()
	} else {
		m.forward()
	}
	if used := int(m.room - room); used > s.Scratch.Bytes() {
		m.bad = errors.Join(m.bad, fmt.Errorf("exec: %s: works in %d bytes, %d are planned", s, used, s.Scratch.Bytes()))
	}
	return inTurn(m.works), m.bad
}

// inTurn does works one after another.
func inTurn(works []cuda.Work) cuda.Work {
	return func() error {
		for _, w := range works {
			if err := w(); err != nil {
				return err
			}
		}
		return nil
	}
}

// do adds a work.
func (m *gpuMeeting) do(w cuda.Work, err error) {
	m.works, m.bad = append(m.works, w), errors.Join(m.bad, err)
}

// take gives bytes of the working memory, as plan has added them up.
func (m *gpuMeeting) take(bytes int) cuda.Ptr {
	p := m.room
	m.room += cuda.Ptr((bytes + 63) / 64 * 64)
	return p
}

// sum takes room to sum t in float32, and clears it.
func (m *gpuMeeting) sum(t gpuTensor) cuda.Ptr {
	p := m.take(4 * t.NumElements())
	m.do(func() error { return m.e.Stream.Zero(p, 4*t.NumElements()) }, nil)
	return p
}

// store rounds a sum to t.
func (m *gpuMeeting) store(t gpuTensor, sum cuda.Ptr) {
	if t.DType == dtype.Float32 {
		m.do(func() error { return m.e.Stream.Copy(t.p, sum, t.Bytes()) }, nil)
		return
	}
	m.do(m.e.Cast(t.DType, t.p, dtype.Float32, sum, t.NumElements()))
}

// row is where row i of row b of the batch begins in a value shaped as t, at p, of elements of size bytes.
func row(p cuda.Ptr, t gpuTensor, size, b, i int) cuda.Ptr {
	return p + cuda.Ptr((b*t.Shape[1]+i)*t.Shape[2]*t.Shape[3]*size)
}

// pair is a run of queries and one of keys that meet, with their first rows in row b of the batch.
type pair struct {
	cuda.AttnShape
	b, q, k int
}

// meet calls f for the pairs of each owner of keys, which lie as k does from the places that it is given. Where they go
// round, the next come while these are met.
func (m *gpuMeeting) meet(f func(x pair, k, v cuda.Ptr), after func(step int)) {
	k, v := m.k.p, m.v.p
	var next [2][2]cuda.Ptr
	if m.turns {
		for i := range next {
			next[i] = [2]cuda.Ptr{m.take(m.k.Bytes()), m.take(m.v.Bytes())}
		}
	}
	for step := range m.ranks {
		owner, first := (m.me-step+len(m.ranks))%len(m.ranks), 0
		last := step == len(m.ranks)-1
		if !m.turns {
			first = placement.Chunk(m.k.logical[1], len(m.ranks), owner).Start
		}
		to := next[step%2]
		if m.turns && !last {
			m.turn(k, to[0], m.k.Bytes())
			m.turn(v, to[1], m.v.Bytes())
		}
		m.pairs(owner, func(b, qRow, kRow int, s cpu.AttnShape) {
			f(pair{cuda.AttnShape(s), b, qRow, first + kRow}, k, v)
		})
		if m.turns && !last {
			m.arrived()
			k, v = to[0], to[1]
		}
		after(step)
	}
}

// turn gives bytes to the next rank for those of the one before, beside what is computed.
func (m *gpuMeeting) turn(from, to cuda.Ptr, bytes int) {
	n, l := len(m.ranks), m.round
	give, take := make([]cuda.Span, n), make([]cuda.Span, n)
	give[(m.me+1)%n], take[(m.me+n-1)%n] = cuda.Span{P: from, Bytes: bytes}, cuda.Span{P: to, Bytes: bytes}
	w, err := m.moves.AllToAllOn(l.stream, m.ring(), m.what, give, take)
	m.do(func() error {
		if err := errors.Join(m.e.Stream.Record(l.ready), l.stream.Wait(l.ready)); err != nil {
			return err
		}
		return w()
	}, err)
}

// arrived waits for the turns.
func (m *gpuMeeting) arrived() {
	l := m.round
	m.do(func() error { return errors.Join(l.stream.Record(l.done), m.e.Stream.Wait(l.done)) }, nil)
}

func (m *gpuMeeting) forward() {
	t, lse := m.q.DType, m.c.out[1].p
	size, seq, heads, dim := t.Size(), m.q.Shape[1], m.q.Shape[2], m.q.Shape[3]
	sum, part, stats := m.take(4*m.q.NumElements()), m.take(m.q.Bytes()/m.batch), m.take(4*seq*heads)
	met := map[[2]int]bool{}
	m.meet(func(x pair, k, v cuda.Ptr) {
		m.do(m.e.Attention(t, part, stats, row(m.q.p, m.q, size, x.b, x.q), row(k, m.k, size, x.b, x.k), row(v, m.v, size, x.b, x.k), x.AttnShape))
		at := lse + cuda.Ptr(4*(x.b*heads*seq+x.q))
		m.do(m.e.JoinAttention(t, row(sum, m.q, 4, x.b, x.q), at, seq, part, stats, x.SeqQ, heads, dim, !met[[2]int{x.b, x.q}]))
		met[[2]int{x.b, x.q}] = true
	}, func(int) {})
	m.store(m.c.out[0], sum)
}

// backward: where keys go round their gradients go with them, and so come home after a full turn.
func (m *gpuMeeting) backward() {
	t := m.q.DType
	do, o, lse := m.c.in[0], m.c.in[4], m.c.in[5]
	size, seq, heads := t.Size(), m.q.Shape[1], m.q.Shape[2]
	dq, dk, dv := m.sum(m.q), m.sum(m.k), m.sum(m.v)
	partQ, partK, partV := m.take(m.q.Bytes()/m.batch), m.take(m.k.Bytes()/m.batch), m.take(m.v.Bytes()/m.batch)
	stats := m.statistics(lse)
	var other [2]cuda.Ptr
	if m.turns {
		other = [2]cuda.Ptr{m.take(4 * m.k.NumElements()), m.take(4 * m.v.NumElements())}
	}
	m.meet(func(x pair, k, v cuda.Ptr) {
		of := func(p cuda.Ptr) cuda.Ptr { return row(p, m.q, size, x.b, x.q) }
		m.do(m.e.AttentionBackward(t, partQ, partK, cuda.Columns{P: partV}, of(do.p), of(m.q.p), row(k, m.k, size, x.b, x.k), row(v, m.v, size, x.b, x.k), of(o.p),
			stats+cuda.Ptr(4*heads*(x.b*seq+x.q)), x.AttnShape))
		m.do(m.e.AddTo(t, row(dq, m.q, 4, x.b, x.q), partQ, x.SeqQ*heads*x.HeadDim))
		m.do(m.e.AddTo(t, row(dk, m.k, 4, x.b, x.k), partK, x.SeqK*x.KVHeads*x.HeadDim))
		m.do(m.e.AddTo(t, row(dv, m.v, 4, x.b, x.k), partV, x.SeqK*x.KVHeads*x.HeadDim))
	}, func(int) {
		if m.turns {
			m.turn(dk, other[0], 4*m.k.NumElements())
			m.turn(dv, other[1], 4*m.v.NumElements())
			m.arrived()
			dk, dv, other = other[0], other[1], [2]cuda.Ptr{dk, dv}
		}
	})
	for i, sum := range []cuda.Ptr{dq, dk, dv} {
		m.store(m.c.out[i], sum)
	}
}

// statistics copies the log-sum-exps of each run of queries together: lse is [batch, heads, seq], a run's is
// [heads, count], at heads·(b·seq + its first row).
func (m *gpuMeeting) statistics(lse gpuTensor) cuda.Ptr {
	heads, seq := m.q.Shape[2], m.q.Shape[1]
	p := m.take(lse.Bytes())
	for b := range m.batch {
		for _, r := range m.runs[m.me] {
			to, from := p+cuda.Ptr(4*heads*(b*seq+r.row)), lse.p+cuda.Ptr(4*(b*heads*seq+r.row))
			m.do(func() error { return m.e.Stream.CopyRows(to, 4*r.count, from, 4*seq, 4*r.count, heads) }, nil)
		}
	}
	return p
}
