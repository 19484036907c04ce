package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

type attnTensors struct{ q, k, v, do, o, lse, dq, dk, dv []float64 }

// refAttention is the definition, in float64, forward and backward.
func refAttention(q, k, v, do []float64, s AttnShape) attnTensors {
	t := attnTensors{q: q, k: k, v: v, do: do, o: make([]float64, len(q)), lse: make([]float64, s.Batch*s.Heads*s.SeqQ),
		dq: make([]float64, len(q)), dk: make([]float64, len(k)), dv: make([]float64, len(v))}
	for b := range s.Batch {
		for h := range s.Heads {
			for i := range s.SeqQ {
				t.row(s, b, h, i)
			}
		}
	}
	return t
}

func (t attnTensors) row(s AttnShape, b, h, i int) {
	qi, li := ((b*s.SeqQ+i)*s.Heads+h)*s.HeadDim, (b*s.Heads+h)*s.SeqQ+i
	key := func(j int) int { return ((b*s.SeqK+j)*s.KVHeads + h*s.KVHeads/s.Heads) * s.HeadDim }
	n := min(max(s.QStart+i-s.KStart+1, 0), s.SeqK)
	dot := func(x, y []float64) (d float64) {
		for e := range s.HeadDim {
			d += x[e] * y[e]
		}
		return d
	}
	p, dp := make([]float64, n), make([]float64, n)
	top := math.Inf(-1)
	for j := range n {
		p[j] = float64(s.Scale) * dot(t.q[qi:], t.k[key(j):])
		top = max(top, p[j])
	}
	var sum, delta float64
	for j := range n {
		sum += math.Exp(p[j] - top)
	}
	t.lse[li] = top + math.Log(sum)
	for j := range n {
		p[j] = math.Exp(p[j] - t.lse[li])
		dp[j] = dot(t.do[qi:], t.v[key(j):])
		delta += p[j] * dp[j]
	}
	for j := range n {
		ds := p[j] * (dp[j] - delta) * float64(s.Scale)
		for e := range s.HeadDim {
			t.o[qi+e] += p[j] * t.v[key(j)+e]
			t.dv[key(j)+e] += p[j] * t.do[qi+e]
			t.dq[qi+e] += ds * t.k[key(j)+e]
			t.dk[key(j)+e] += ds * t.q[qi+e]
		}
	}
}

var attnCases = []AttnShape{
	{1, 1, 1, 1, 1, 16, 0.25, 0, 0},
	{2, 5, 5, 2, 1, 8, 0.3, 0, 0},
	{1, 97, 97, 2, 2, 16, 0.25, 0, 0},
	{1, 200, 200, 4, 2, 20, 0.2, 0, 0},
	{1, 130, 130, 1, 1, 64, 0.125, 0, 0},
	{1, 49, 49, 2, 1, 128, 0.088, 0, 0},
	{1, 50, 150, 2, 1, 16, 0.25, 100, 0},  // a later part of the queries
	{1, 60, 100, 2, 1, 16, 0.25, 30, 60},  // the first 30 see nothing
	{1, 10, 20, 1, 1, 16, 0.25, 0, 50},    // none sees anything
	{1, 10, 300, 1, 1, 33, 0.25, 1000, 0}, // all see all
	{1, 0, 8, 1, 1, 16, 0.25, 0, 0},
	{1, 8, 0, 1, 1, 16, 0.25, 0, 0},
}

func TestAttention(t *testing.T) {
	for _, s := range attnCases {
		nq, nk := s.Batch*s.SeqQ*s.Heads*s.HeadDim, s.Batch*s.SeqK*s.KVHeads*s.HeadDim
		q, k, v, do := random(1, nq), random(2, nk), random(3, nk), random(4, nq)
		for i := range q {
			q[i] *= 3
		}
		want := refAttention(f64(q), f64(k), f64(v), f64(do), s)
		for _, e := range engines(2) {
			t.Run(fmt.Sprint(e.k.name, s), func(t *testing.T) {
				o, lse := make([]float32, nq), make([]float32, s.Batch*s.Heads*s.SeqQ)
				dq, dk, dv := random(5, nq), random(5, nk), random(5, nk)
				e.Attention(o, lse, q, k, v, s)
				near(t, want.o, o, 3e-6, "o")
				near(t, want.lse, lse, 1e-6, "lse")
				e.AttentionBackward(dq, dk, dv, do, q, k, v, o, lse, s)
				near(t, want.dq, dq, 2e-5, "dq")
				near(t, want.dk, dk, 2e-5, "dk")
				near(t, want.dv, dv, 2e-5, "dv")
			})
		}
	}
}

func TestAttentionBF16(t *testing.T) {
	s := AttnShape{1, 70, 70, 4, 2, 16, 0.25, 0, 0}
	nq, nk := s.Batch*s.SeqQ*s.Heads*s.HeadDim, s.Batch*s.SeqK*s.KVHeads*s.HeadDim
	q, k, v, do := bf16(random(1, nq)), bf16(random(2, nk)), bf16(random(3, nk)), bf16(random(4, nq))
	want := refAttention(f64(fromBF16(q)), f64(fromBF16(k)), f64(fromBF16(v)), f64(fromBF16(do)), s)
	for _, e := range engines(2) {
		o, lse := make([]uint16, nq), make([]float32, s.Heads*s.SeqQ)
		dq, dk, dv := make([]uint16, nq), make([]uint16, nk), make([]uint16, nk)
		e.AttentionBF16(o, lse, q, k, v, s)
		near(t, want.o, fromBF16(o), 4e-3, "o")
		near(t, want.lse, lse, 1e-6, "lse")
		e.AttentionBackwardBF16(dq, dk, dv, do, q, k, v, o, lse, s)
		near(t, want.dq, fromBF16(dq), 3e-2, "dq")
		near(t, want.dk, fromBF16(dk), 3e-2, "dk")
		near(t, want.dv, fromBF16(dv), 3e-2, "dv")
	}
}

func TestAttentionThreads(t *testing.T) {
	s := AttnShape{2, 150, 150, 4, 2, 16, 0.25, 0, 0}
	nq, nk := s.Batch*s.SeqQ*s.Heads*s.HeadDim, s.Batch*s.SeqK*s.KVHeads*s.HeadDim
	q, k, v, do := random(1, nq), random(2, nk), random(3, nk), random(4, nq)
	run := func(threads int) [][]float32 {
		e := &Engine{threads: threads, k: bestKernels()}
		o, lse := make([]float32, nq), make([]float32, s.Batch*s.Heads*s.SeqQ)
		dq, dk, dv := make([]float32, nq), make([]float32, nk), make([]float32, nk)
		e.Attention(o, lse, q, k, v, s)
		e.AttentionBackward(dq, dk, dv, do, q, k, v, o, lse, s)
		return [][]float32{o, lse, dq, dk, dv}
	}
	one := run(1)
	for _, threads := range []int{2, 7} {
		for i, x := range run(threads) {
			sameBits(t, one[i], x, "output", i, threads, "threads")
		}
	}
}

func BenchmarkAttention(b *testing.B) {
	for _, s := range []AttnShape{{2, 2048, 2048, 16, 16, 16, 0.25, 0, 0}, {8, 256, 256, 16, 16, 16, 0.25, 0, 0}, {1, 1024, 1024, 8, 2, 128, 0.088, 0, 0}} {
		e, err := New(Options{})
		require.NoError(b, err)
		nq, nk := s.Batch*s.SeqQ*s.Heads*s.HeadDim, s.Batch*s.SeqK*s.KVHeads*s.HeadDim
		q, k, v, do := random(1, nq), random(2, nk), random(3, nk), random(4, nq)
		o, lse := make([]float32, nq), make([]float32, s.Batch*s.Heads*s.SeqQ)
		dq, dk, dv := make([]float32, nq), make([]float32, nk), make([]float32, nk)
		flops := float64(s.Batch*s.Heads) * float64(s.SeqQ) * float64(s.SeqK) * float64(s.HeadDim) // one causal product
		name := fmt.Sprintf("B%dS%dN%dG%dH%d", s.Batch, s.SeqQ, s.Heads, s.KVHeads, s.HeadDim)
		b.Run(name+"/forward", func(b *testing.B) {
			for b.Loop() {
				e.Attention(o, lse, q, k, v, s)
			}
			b.ReportMetric(2*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
		b.Run(name+"/backward", func(b *testing.B) {
			for b.Loop() {
				e.AttentionBackward(dq, dk, dv, do, q, k, v, o, lse, s)
			}
			b.ReportMetric(5*flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
