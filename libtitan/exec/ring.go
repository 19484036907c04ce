package exec

import (
	"context"
	"fmt"
	"math"
	"slices"

	"titan/libtitan/comm"
	"titan/libtitan/device/cpu"
	"titan/libtitan/op"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// meeting is which queries of a cp rank attend to which keys of the others.
type meeting struct {
	ranks []int // of the group
	me    int   // my place in it
	batch int
	shape cpu.AttnShape // of one row of the batch
	runs  [][]queryRun  // by owner of a block: its rows at consecutive positions
}

func newMeeting(prog *plan.Program, a op.AttentionAttr, q, k tensor) meeting {
	m := meeting{me: prog.Mesh.Index(prog.Coord, placement.CP), batch: q.Shape[0]}
	group := prog.Mesh.Group(prog.Coord, placement.CP)
	for i, rank := range group {
		m.ranks = append(m.ranks, world(prog, prog.PP, rank))
		block := q
		block.at = slices.Clone(q.at)
		block.at[1] = placement.Chunk(q.logical[1], len(group), i)
		block.Shape = slices.Clone(q.Shape)
		block.Shape[1] = block.at[1].Len
		m.runs = append(m.runs, queryRuns(block, q.logical[1], a.Pieces))
	}
	m.shape = cpu.AttnShape{Batch: 1, Heads: q.Shape[2], KVHeads: k.Shape[2], HeadDim: q.Shape[3], Scale: float32(1 / math.Sqrt(float64(q.Shape[3])))}
	return m
}

// ring is causal attention over keys and values that go round the cp ranks, block by block, in float32.
type ring struct {
	meeting
	comm    comm.Comm
	e       *cpu.Engine
	what    string
	q, k, v tensor
	room    *scratch
}

func (r *Runner) newRing(s *plan.Step, c call, q, k, v tensor) *ring {
	return &ring{meeting: newMeeting(r.prog, c.attr.(op.AttentionAttr), q, k), comm: r.comm, e: c.e, q: q, k: k, v: v, room: c.room, what: ringName(s)}
}

func ringName(s *plan.Step) string { return fmt.Sprintf("ring %s %v", s.Node.FQN, s.Action) }

// turn gives a block of the previous rank for mine.
func (g *ring) turn(ctx context.Context, step int, name string, x []float32) error {
	n := len(g.ranks)
	if n == 1 {
		return nil
	}
	what := fmt.Sprintf("%s %s %d", g.what, name, step)
	if err := g.comm.Send(ctx, g.ranks[(g.me+1)%n], what, bytesOf(x)); err != nil {
		return err
	}
	return g.comm.Recv(ctx, g.ranks[(g.me+n-1)%n], what, bytesOf(x))
}

// floats takes n of them from the working memory.
func (g *ring) floats(n int) []float32 { return takeOf[float32](g.room, n) }

// copied is a tensor's working copy.
type copied struct {
	tensor
	x []float32
}

func (g *ring) copyOf(t tensor) copied { return copied{t, g.floats(t.NumElements())} }

// load fills working copies from their tensors.
func (g *ring) load(all ...copied) {
	for _, c := range all {
		if c.narrow() {
			g.e.Widen(c.x, c.bf16())
		} else {
			copy(c.x, c.f32())
		}
	}
}

// store rounds x into t.
func (g *ring) store(t tensor, x []float32) {
	if t.narrow() {
		g.e.Narrow(t.bf16(), x)
	} else {
		copy(t.f32(), x)
	}
}

// pairs calls f for every run of my queries and run of the keys of owner's block that may attend, in order, for each
// row b of the batch. The shape has their positions and lengths, qRow and kRow are their first rows.
func (m *meeting) pairs(owner int, f func(b, qRow, kRow int, s cpu.AttnShape)) {
	for b := range m.batch {
		for _, qr := range m.runs[m.me] {
			for _, kr := range m.runs[owner] {
				if kr.position >= qr.position+qr.count {
					continue
				}
				s := m.shape
				s.SeqQ, s.QStart, s.SeqK, s.KStart = qr.count, qr.position, kr.count, kr.position
				f(b, qr.row, kr.row, s)
			}
		}
	}
}

// rows is n rows of width elements of row b of the batch, from row on, where each row of the batch has perRow.
func rows(x []float32, b, perRow, row, n, width int) []float32 {
	return x[(b*perRow+row)*width:][:n*width]
}

// bindRing is the forward: partial results of the blocks are joined by their log-sum-exps.
func (r *Runner) bindRing(s *plan.Step, c call) func(ctx context.Context) error {
	g := r.newRing(s, c, c.in[0], c.in[1], c.in[2])
	seqQ, seqK, heads := g.q.Shape[1], g.k.Shape[1], g.shape.Heads
	wide, narrow := heads*g.shape.HeadDim, g.shape.KVHeads*g.shape.HeadDim
	qc, kc, vc := g.copyOf(g.q), g.copyOf(g.k), g.copyOf(g.v)
	q, k, v, o, lse := qc.x, kc.x, vc.x, g.floats(len(qc.x)), c.out[1].f32()
	parts, stats := g.floats(seqQ*wide), g.floats(seqQ*heads)
	return func(ctx context.Context) error {
		g.load(qc, kc, vc)
		clear(o)
		for i := range lse {
			lse[i] = float32(math.Inf(-1))
		}
		for step := range g.ranks {
			owner := (g.me - step + len(g.ranks)) % len(g.ranks)
			g.pairs(owner, func(b, qRow, kRow int, s cpu.AttnShape) {
				part, partLSE := parts[:s.SeqQ*wide], stats[:heads*s.SeqQ]
				g.e.Attention(part, partLSE, rows(q, b, seqQ, qRow, s.SeqQ, wide), rows(k, b, seqK, kRow, s.SeqK, narrow), rows(v, b, seqK, kRow, s.SeqK, narrow), s)
				join(rows(o, b, seqQ, qRow, s.SeqQ, wide), part, lse[b*heads*seqQ+qRow:], partLSE, s, seqQ)
			})
			if step == len(g.ranks)-1 {
				break
			}
			if err := g.turn(ctx, step, "k", k); err != nil {
				return err
			}
			if err := g.turn(ctx, step, "v", v); err != nil {
				return err
			}
		}
		g.store(c.out[0], o)
		return nil
	}
}

// join adds the attention over more keys to o: each row weighs by its share of the sum of exponents. lse is strided
// by head, part's is dense.
func join(o, part, lse, partLSE []float32, s cpu.AttnShape, stride int) {
	for h := range s.Heads {
		for i := range s.SeqQ {
			a, b := float64(lse[h*stride+i]), float64(partLSE[h*s.SeqQ+i])
			if math.IsInf(b, -1) {
				continue
			}
			top := max(a, b)
			sum := top + math.Log(math.Exp(a-top)+math.Exp(b-top))
			wa, wb := float32(math.Exp(a-sum)), float32(math.Exp(b-sum))
			at := (i*s.Heads + h) * s.HeadDim
			for d := range s.HeadDim {
				o[at+d] = wa*o[at+d] + wb*part[at+d]
			}
			lse[h*stride+i] = float32(sum)
		}
	}
}

// bindRingBackward: the gradients of a block's keys and values go round with it, and so come home after a full turn.
func (r *Runner) bindRingBackward(s *plan.Step, c call) func(ctx context.Context) error {
	g := r.newRing(s, c, c.in[1], c.in[2], c.in[3])
	seqQ, seqK, heads := g.q.Shape[1], g.k.Shape[1], g.shape.Heads
	wide, narrow := heads*g.shape.HeadDim, g.shape.KVHeads*g.shape.HeadDim
	doc, qc, kc, vc, oc := g.copyOf(c.in[0]), g.copyOf(g.q), g.copyOf(g.k), g.copyOf(g.v), g.copyOf(c.in[4])
	do, q, k, v, o, lse := doc.x, qc.x, kc.x, vc.x, oc.x, c.in[5].f32()
	dq, dk, dv := g.floats(len(q)), g.floats(len(k)), g.floats(len(v))
	partQ, partK, partV, stats := g.floats(seqQ*wide), g.floats(seqK*narrow), g.floats(seqK*narrow), g.floats(seqQ*heads)
	return func(ctx context.Context) error {
		g.load(doc, qc, kc, vc, oc)
		for _, sum := range [][]float32{dq, dk, dv} {
			clear(sum)
		}
		for step := range g.ranks {
			owner := (g.me - step + len(g.ranks)) % len(g.ranks)
			g.pairs(owner, func(b, qRow, kRow int, s cpu.AttnShape) {
				partLSE := stats[:heads*s.SeqQ]
				for h := range heads {
					copy(partLSE[h*s.SeqQ:][:s.SeqQ], lse[(b*heads+h)*seqQ+qRow:])
				}
				pq, pk, pv := partQ[:s.SeqQ*wide], partK[:s.SeqK*narrow], partV[:s.SeqK*narrow]
				g.e.AttentionBackward(pq, pk, pv, rows(do, b, seqQ, qRow, s.SeqQ, wide), rows(q, b, seqQ, qRow, s.SeqQ, wide),
					rows(k, b, seqK, kRow, s.SeqK, narrow), rows(v, b, seqK, kRow, s.SeqK, narrow), rows(o, b, seqQ, qRow, s.SeqQ, wide), partLSE, s)
				for _, sum := range []struct{ to, part []float32 }{
					{rows(dq, b, seqQ, qRow, s.SeqQ, wide), pq}, {rows(dk, b, seqK, kRow, s.SeqK, narrow), pk}, {rows(dv, b, seqK, kRow, s.SeqK, narrow), pv},
				} {
					g.e.Add(sum.to, sum.to, sum.part)
				}
			})
			for _, block := range []struct {
				name string
				x    []float32
			}{{"k", k}, {"v", v}, {"dk", dk}, {"dv", dv}} {
				if err := g.turn(ctx, step, block.name, block.x); err != nil {
					return err
				}
			}
		}
		g.store(c.out[0], dq)
		g.store(c.out[1], dk)
		g.store(c.out[2], dv)
		return nil
	}
}
