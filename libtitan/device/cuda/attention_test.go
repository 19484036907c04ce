package cuda

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
)

func attnShape(batch, seqQ, seqK, heads, kvHeads, dim, qStart, kStart int) AttnShape {
	return AttnShape{batch, seqQ, seqK, heads, kvHeads, dim, float32(1 / math.Sqrt(float64(dim))), qStart, kStart}
}

// attnArrays are the inputs and results of one attention.
type attnArrays struct{ q, k, v, do, o, lse, dq, dk, dv array }

func newAttnArrays(t testing.TB, e *Engine, kind dtype.DType, s AttnShape) attnArrays {
	nq, nk := s.Batch*s.SeqQ*s.Heads*s.HeadDim, s.Batch*s.SeqK*s.KVHeads*s.HeadDim
	return attnArrays{random(t, e, kind, 1, nq), random(t, e, kind, 2, nk), random(t, e, kind, 3, nk), random(t, e, kind, 4, nq),
		blank(t, e, kind, nq), blank(t, e, dtype.Float32, s.Batch*s.Heads*s.SeqQ), blank(t, e, kind, nq), blank(t, e, kind, nk), blank(t, e, kind, nk)}
}

// check compares with the host's attention, which is held to float64 where it lives.
func (a attnArrays) check(t testing.TB, s AttnShape) {
	host, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	f := func(x array) []float32 { return floats(x.host) }
	o, lse, dq, dk, dv := f(a.o), f(a.lse), f(a.dq), f(a.dk), f(a.dv)
	host.Attention(o, lse, f(a.q), f(a.k), f(a.v), cpu.AttnShape(s))
	host.AttentionBackward(dq, dk, dv, f(a.do), f(a.q), f(a.k), f(a.v), o, lse, cpu.AttnShape(s))
	// In bfloat16 p and ds are rounded before the products that sum over a row, and o before delta is made of it.
	tol, grad := 1e-5, 5e-5
	if a.o.kind == dtype.BFloat16 {
		tol, grad = 1e-2, 4e-2
	}
	near(t, wide(o), a.o, tol, "o")
	near(t, wide(lse), a.lse, 1e-5, "lse")
	near(t, wide(dq), a.dq, grad, "dq")
	near(t, wide(dk), a.dk, grad, "dk")
	near(t, wide(dv), a.dv, grad, "dv")
}

// Our own kernel, in every shape that attention is given.
func TestTiledAttention(t *testing.T) {
	for _, s := range []AttnShape{
		attnShape(1, 1, 1, 1, 1, 16, 0, 0),
		attnShape(2, 5, 5, 2, 1, 8, 0, 0),
		attnShape(1, 97, 97, 2, 2, 16, 0, 0),
		attnShape(1, 200, 200, 4, 2, 20, 0, 0),
		attnShape(2, 130, 130, 3, 1, 64, 0, 0),
		attnShape(1, 150, 150, 4, 2, 128, 0, 0),
		attnShape(1, 70, 70, 2, 1, 256, 0, 0),
		attnShape(1, 50, 150, 2, 1, 16, 100, 0),  // a later part of the queries
		attnShape(1, 60, 100, 2, 1, 16, 30, 60),  // the first 30 see nothing
		attnShape(1, 10, 20, 1, 1, 16, 0, 50),    // none sees anything
		attnShape(1, 10, 300, 1, 1, 33, 1000, 0), // all see all
	} {
		each(t, fmt.Sprint(s), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			a := newAttnArrays(t, e, kind, s)
			does(t)(e.tiledAttention(kind, a.o.p, a.lse.p, a.q.p, a.k.p, a.v.p, s))
			does(t)(e.tiledAttentionBackward(kind, a.dq.p, a.dk.p, Columns{P: a.dv.p}, a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s))
			a.check(t, s)
		})
	}
}

// cuDNN's, in both forms of the backward; a deterministic one gives the same bits again.
func TestFusedAttention(t *testing.T) {
	for _, deterministic := range []bool{false, true} {
		for _, s := range []AttnShape{
			attnShape(2, 256, 256, 4, 4, 16, 0, 0),
			attnShape(1, 512, 512, 4, 2, 128, 0, 0),
			attnShape(2, 384, 384, 8, 2, 64, 0, 0),
			attnShape(1, 1024, 1024, 2, 1, 128, 0, 0),
			attnShape(1, 256, 256, 4, 2, 64, 512, 512), // a later part of a sequence meets itself
			attnShape(1, 256, 512, 4, 2, 64, 512, 0),   // it meets what is before
			attnShape(1, 512, 128, 4, 4, 128, 128, 0),
			attnShape(1, 128, 1024, 8, 1, 128, 4096, 1024),
		} {
			t.Run(fmt.Sprint(s, deterministic), func(t *testing.T) {
				e := gpu(t)
				e.Deterministic = deterministic
				e.dnn = nil // plans are of one form
				a := newAttnArrays(t, e, dtype.BFloat16, s)
				forward, err := e.fusedAttention(a.o.p, a.lse.p, a.q.p, a.k.p, a.v.p, s)
				require.NoError(t, err)
				backward, err := e.fusedAttentionBackward(a.dq.p, a.dk.p, Columns{P: a.dv.p}, a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s)
				require.NoError(t, err)
				require.NoError(t, forward())
				require.NoError(t, backward())
				a.check(t, s)
				first := a.dq.get()
				g, err := e.Stream.Capture(func() error { return sequence(forward, backward)() })
				require.NoError(t, err)
				require.NoError(t, e.Stream.Launch(g))
				a.check(t, s)
				if deterministic {
					require.Equal(t, first, a.dq.get())
				}
				require.NoError(t, g.Close())
			})
		}
	}
}

// Attention chooses between the two.
func TestFusedShapes(t *testing.T) {
	for _, s := range []AttnShape{attnShape(1, 256, 256, 4, 2, 64, 0, 0), attnShape(1, 128, 256, 4, 2, 64, 256, 0), attnShape(1, 256, 128, 4, 2, 64, 127, 0)} {
		require.True(t, s.fused(), s)
	}
	for _, s := range []AttnShape{
		attnShape(1, 100, 100, 4, 2, 64, 0, 0), attnShape(1, 256, 256, 4, 2, 20, 0, 0), attnShape(1, 256, 256, 4, 2, 256, 0, 0),
		attnShape(1, 128, 256, 4, 2, 64, 128, 0), attnShape(1, 256, 128, 4, 2, 64, 126, 0),
	} {
		require.False(t, s.fused(), s)
	}
}

// Attention of parts joined, and the sums of their gradients, are those of the whole: runs of queries over the keys
// before them and over themselves.
func TestJoinedAttention(t *testing.T) {
	for _, whole := range []AttnShape{attnShape(1, 512, 512, 4, 2, 64, 0, 0), attnShape(1, 96, 96, 3, 1, 10, 0, 0), attnShape(1, 384, 384, 2, 2, 128, 0, 0)} {
		each(t, fmt.Sprint(whole), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			a := newAttnArrays(t, e, kind, whole)
			n, run := whole.SeqQ, whole.SeqQ/4
			wide, narrow := whole.Heads*whole.HeadDim, whole.KVHeads*whole.HeadDim
			at := func(x array, row, width int) Ptr { return x.p + Ptr(row*width*x.kind.Size()) }
			sums := []array{blank(t, e, dtype.Float32, n*wide), put(t, e, dtype.Float32, make([]float64, n*wide)), put(t, e, dtype.Float32, make([]float64, n*narrow)), put(t, e, dtype.Float32, make([]float64, n*narrow))}
			o, dq, dk, dv := sums[0], sums[1], sums[2], sums[3]
			part, stats, partQ, partK, partV := blank(t, e, kind, n*wide), blank(t, e, dtype.Float32, n*whole.Heads), blank(t, e, kind, n*wide), blank(t, e, kind, n*narrow), blank(t, e, kind, n*narrow)
			pairs := func(f func(s AttnShape, first bool)) {
				for q := 0; q < n; q += run {
					for _, k := range [][2]int{{q, q + run}, {0, q}} {
						s := whole
						if s.SeqQ, s.SeqK, s.QStart, s.KStart = run, k[1]-k[0], q, k[0]; s.SeqK > 0 {
							f(s, k[0] == q)
						}
					}
				}
			}
			pairs(func(s AttnShape, first bool) {
				does(t)(e.Attention(kind, part.p, stats.p, at(a.q, s.QStart, wide), at(a.k, s.KStart, narrow), at(a.v, s.KStart, narrow), s))
				does(t)(e.JoinAttention(kind, at(o, s.QStart, wide), a.lse.p+Ptr(4*s.QStart), n, part.p, stats.p, run, s.Heads, s.HeadDim, first))
			})
			if kind == dtype.Float32 {
				require.NoError(t, e.Stream.Copy(a.o.p, o.p, 4*n*wide))
			} else {
				does(t)(e.Cast(kind, a.o.p, dtype.Float32, o.p, n*wide))
			}
			pairs(func(s AttnShape, _ bool) {
				require.NoError(t, e.Stream.CopyRows(stats.p, 4*run, a.lse.p+Ptr(4*s.QStart), 4*n, 4*run, s.Heads))
				of := func(x array) Ptr { return at(x, s.QStart, wide) }
				does(t)(e.AttentionBackward(kind, partQ.p, partK.p, Columns{P: partV.p}, of(a.do), of(a.q), at(a.k, s.KStart, narrow), at(a.v, s.KStart, narrow), of(a.o), stats.p, s))
				does(t)(e.AddTo(kind, at(dq, s.QStart, wide), partQ.p, run*wide))
				does(t)(e.AddTo(kind, at(dk, s.KStart, narrow), partK.p, s.SeqK*narrow))
				does(t)(e.AddTo(kind, at(dv, s.KStart, narrow), partV.p, s.SeqK*narrow))
			})
			a.dq, a.dk, a.dv = dq, dk, dv
			a.check(t, whole)
		})
	}
}
