package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/op"
)

// each runs f for each type that kernels compute with.
func each(t *testing.T, name string, f func(t *testing.T, kind dtype.DType)) {
	for _, kind := range computed {
		t.Run(fmt.Sprintf("%s/%v", name, kind), func(t *testing.T) { f(t, kind) })
	}
}

func TestRMSNorm(t *testing.T) {
	for _, c := range []struct{ rows, dim int }{{5, 16}, {37, 256}, {600, 2048}, {70, 4096}, {9, 8192}, {21, 33}, {3, 1000}} {
		each(t, fmt.Sprint(c), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			x, w, dy := random(t, e, kind, 1, c.rows*c.dim), random(t, e, kind, 2, c.dim), random(t, e, kind, 3, c.rows*c.dim)
			y, rstd, dx := blank(t, e, kind, c.rows*c.dim), blank(t, e, dtype.Float32, c.rows), blank(t, e, kind, c.rows*c.dim)
			dw, sum := blank(t, e, dtype.Float32, c.dim), random(t, e, dtype.Float32, 4, c.dim)
			does(t)(e.RMSNorm(kind, y.p, rstd.p, x.p, w.p, c.rows, c.dim, 1e-5))
			does(t)(e.RMSNormBackward(kind, dx.p, dw.p, dy.p, x.p, w.p, rstd.p, c.rows, c.dim, false))
			does(t)(e.RMSNormBackward(kind, dx.p, sum.p, dy.p, x.p, w.p, rstd.p, c.rows, c.dim, true))
			r := newReference(t)
			vy := op.RMSNorm(r.g, r.input(x, 1, c.rows, c.dim), r.input(w, c.dim), 1e-5)
			d := r.backward(vy, r.input(dy, 1, c.rows, c.dim), nil)
			want := r.eval()
			near(t, want[vy].Data, y, tolerance(kind, 2e-6), "y")
			near(t, want[vy.Node.Results[1]].Data, rstd, 1e-6, "rstd")
			near(t, want[d[0]].Data, dx, tolerance(kind, 4e-6), "dx")
			near(t, want[d[1]].Data, dw, 2e-5, "dw")
			for i, v := range want[d[1]].Data {
				sum.host[i] += v
			}
			near(t, sum.host, sum, 2e-5, "dw added")
		})
	}
}

func TestElementwise(t *testing.T) {
	for _, n := range []int{1, 7, 4096, 100_003} {
		each(t, fmt.Sprint(n), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			a, b, dy := put(t, e, kind, values(kind, 1, n, 4)), random(t, e, kind, 2, n), random(t, e, kind, 3, n)
			y, da, db := blank(t, e, kind, n), blank(t, e, kind, n), blank(t, e, kind, n)
			does(t)(e.SwiGLU(kind, y.p, a.p, b.p, n))
			does(t)(e.SwiGLUBackward(kind, da.p, db.p, dy.p, a.p, b.p, n))
			r := newReference(t)
			vy := op.SwiGLU(r.g, r.input(a, 1, 1, n), r.input(b, 1, 1, n))
			d := r.backward(vy, r.input(dy, 1, 1, n))
			want := r.eval()
			near(t, want[vy].Data, y, tolerance(kind, 1e-6), "swiglu")
			near(t, want[d[0]].Data, da, tolerance(kind, 1e-6), "da")
			near(t, want[d[1]].Data, db, tolerance(kind, 1e-6), "db")

			sum := blank(t, e, kind, n)
			does(t)(e.Add(kind, sum.p, n, a.p, b.p, dy.p))
			total := make([]float64, n)
			for i := range total {
				total[i] = a.host[i] + b.host[i] + dy.host[i]
			}
			near(t, total, sum, tolerance(kind, 1e-6), "sum of three")
			does(t)(e.Add(kind, b.p, n, a.p, b.p))
			for i := range total {
				total[i] = a.host[i] + b.host[i]
			}
			near(t, total, b, tolerance(kind, 1e-6), "sum in place")
		})
	}
}

// Casts round to nearest even, as the host does: the same bits.
func TestCast(t *testing.T) {
	const n = 4099
	e := gpu(t)
	x := random(t, e, dtype.Float32, 1, n)
	x.host = values(dtype.Float32, 1, n, 1)
	narrow, wide := blank(t, e, dtype.BFloat16, n), blank(t, e, dtype.Float32, n)
	does(t)(e.Cast(dtype.BFloat16, narrow.p, dtype.Float32, x.p, n))
	does(t)(e.Cast(dtype.Float32, wide.p, dtype.BFloat16, narrow.p, n))
	want := make([]float64, n)
	for i, v := range x.host {
		want[i] = float64(dtype.F32(dtype.BF16(float32(v))))
	}
	require.Equal(t, want, narrow.get())
	require.Equal(t, want, wide.get())
}

func TestRope(t *testing.T) {
	for _, c := range []struct{ b, s, n, h int }{{2, 5, 3, 16}, {1, 70, 4, 128}, {1, 3, 2, 6}} {
		each(t, fmt.Sprint(c), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			x := random(t, e, kind, 1, c.b*c.s*c.n*c.h)
			r := newReference(t)
			cos, sin := op.RopeTable(r.g, op.RopeTableAttr{SeqLen: c.s, HeadDim: c.h, Theta: 5e5})
			vy := op.Rope(r.g, r.input(x, c.b, c.s, c.n, c.h), cos, sin)
			back := r.backward(vy, r.input(x, c.b, c.s, c.n, c.h))[0]
			want := r.eval()
			dc, ds := put(t, e, dtype.Float32, want[cos].Data), put(t, e, dtype.Float32, want[sin].Data)
			y, dx := blank(t, e, kind, len(x.host)), blank(t, e, kind, len(x.host))
			does(t)(e.Rope(kind, Columns{P: y.p}, x.p, dc.p, ds.p, c.b, c.s, c.n, c.h, false))
			does(t)(e.Rope(kind, Columns{P: dx.p}, x.p, dc.p, ds.p, c.b, c.s, c.n, c.h, true))
			near(t, want[vy].Data, y, tolerance(kind, 1e-6), "forward")
			near(t, want[back].Data, dx, tolerance(kind, 1e-6), "backward")
		})
	}
}

// The largest magnitude that is told has the bits of one that is found later, what is turned those of what is turned alone, densely or into
// columns; also of more elements than blocks have at once, of none, and of infinities and NaNs.
func TestRopeLargest(t *testing.T) {
	for _, c := range []struct{ b, s, n, h int }{{2, 5, 3, 16}, {1, 70, 4, 128}, {1, 3, 2, 6}, {1, 2300, 32, 128}} {
		each(t, fmt.Sprint(c), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			rows, width := c.b*c.s, c.n*c.h
			cos, sin := random(t, e, dtype.Float32, 4, c.s*c.h/2), random(t, e, dtype.Float32, 5, c.s*c.h/2)
			for _, odd := range []bool{false, true} {
				x := put(t, e, kind, uneven(kind, rows*width, odd))
				want, y, into := blank(t, e, kind, rows*width), blank(t, e, kind, rows*width), newColumns(t, e, kind, rows, width)
				found, told := blank(t, e, dtype.Float32, 1), blank(t, e, dtype.Float32, 1)
				does(t)(e.Rope(kind, Columns{P: want.p}, x.p, cos.p, sin.p, c.b, c.s, c.n, c.h, true))
				does(t)(e.Amax(kind, found.p, want.p, rows, width, PerTensor))
				for _, to := range []Columns{{P: y.p}, into.at(), {P: x.p}} {
					require.NoError(t, e.Stream.Set(told.p, 0xff, 4))
					does(t)(e.RopeLargest(kind, to, told.p, x.p, cos.p, sin.p, c.b, c.s, c.n, c.h, true))
					require.Equal(t, e.bytes(t, found.p, 4), e.bytes(t, told.p, 4))
				}
				bits := e.bytes(t, want.p, rows*width*kind.Size())
				require.Equal(t, bits, e.bytes(t, y.p, len(bits)))
				require.Equal(t, bits, e.bytes(t, x.p, len(bits)), "in place")
				if !odd { // a NaN is not equal to itself
					into.requireSame(y, "rope")
				}
				does(t)(e.RopeLargest(kind, Columns{P: y.p}, told.p, x.p, cos.p, sin.p, 0, c.s, c.n, c.h, true))
				require.Equal(t, []float64{0}, told.get(), "of nothing")
			}
		})
	}
}

func TestEmbedding(t *testing.T) {
	for _, c := range []struct{ tokens, vocab, dim int }{{7, 5, 16}, {3000, 40, 256}, {1500, 1000, 1028}, {90, 11, 33}} {
		each(t, fmt.Sprint(c), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			ids := make([]float64, c.tokens)
			for i := range ids {
				ids[i] = float64(rand.New(rand.NewPCG(uint64(i), 3)).IntN(c.vocab))
			}
			table, dy := random(t, e, kind, 1, c.vocab*c.dim), random(t, e, kind, 2, c.tokens*c.dim)
			at := put(t, e, dtype.Int32, ids)
			r := newReference(t)
			vy := op.Embedding(r.g, r.input(at, 1, c.tokens), r.input(table, c.vocab, c.dim))
			back := r.backward(vy, r.input(dy, 1, c.tokens, c.dim))[1]
			want := r.eval()
			y, dw := blank(t, e, kind, c.tokens*c.dim), blank(t, e, dtype.Float32, c.vocab*c.dim)
			whole := Vocab{0, c.vocab}
			does(t)(e.Embedding(kind, y.p, kind, table.p, at.p, c.tokens, whole, c.dim))
			does(t)(e.EmbeddingBackward(kind, dw.p, dy.p, at.p, c.tokens, whole, c.dim, false))
			near(t, want[vy].Data, y, 0, "rows")
			if kind == dtype.BFloat16 { // what is stored in float32 is rounded on the way
				does(t)(e.Embedding(kind, y.p, dtype.Float32, put(t, e, dtype.Float32, table.host).p, at.p, c.tokens, whole, c.dim))
				near(t, want[vy].Data, y, 0, "rows of a float32 table")
			}
			near(t, want[back].Data, dw, 1e-5, "gradient")
			require.Equal(t, dw.get(), summedByRows(t, dy, at, c.tokens, whole, c.dim), "by rows")

			// A rank's part of the vocabulary: ids elsewhere give zeros and no gradient.
			first := c.vocab / 2
			part := Vocab{first, c.vocab - first}
			for i, id := range ids {
				if int(id) < first {
					clear(want[vy].Data[i*c.dim:][:c.dim])
				}
			}
			sum := random(t, e, dtype.Float32, 5, part.Size*c.dim)
			does(t)(e.Embedding(kind, y.p, kind, table.p+Ptr(first*c.dim*kind.Size()), at.p, c.tokens, part, c.dim))
			does(t)(e.EmbeddingBackward(kind, sum.p, dy.p, at.p, c.tokens, part, c.dim, true))
			near(t, want[vy].Data, y, 0, "rows of a part")
			for i, v := range want[back].Data[first*c.dim:] {
				sum.host[i] += v
			}
			near(t, sum.host, sum, 1e-5, "gradient of a part, added")
			does(t)(e.EmbeddingBackward(kind, sum.p, dy.p, at.p, c.tokens, part, c.dim, false))
			require.Equal(t, sum.get(), summedByRows(t, dy, at, c.tokens, part, c.dim), "a part by rows")
		})
	}
}

// summedByRows is an embedding's gradient, with all rows of v, as EmbeddingBackwardRows makes it of dy.
func summedByRows(t *testing.T, dy, ids array, tokens int, v Vocab, dim int) []float64 {
	e := dy.e
	dw, rows := blank(t, e, dtype.Float32, tokens*dim), make([]int32, v.Size)
	at := blank(t, e, dtype.Int32, v.Size)
	does(t)(e.EmbeddingBackwardRows(dy.kind, dw.p, at.p, dy.p, ids.p, tokens, v, dim))
	some, all := dw.get(), make([]float64, v.Size*dim)
	require.NoError(t, e.Download(bytesOf(rows), at.p))
	for row, token := range rows {
		if token >= 0 {
			copy(all[row*dim:][:dim], some[int(token)*dim:])
		}
	}
	return all
}

func TestLoss(t *testing.T) {
	for _, c := range []struct{ rows, vocab int }{{3, 8}, {130, 2048}, {65, 258}, {17, 128256}, {9, 40008}, {1, 32776}, {2, 40012}, {40, 33}} {
		each(t, fmt.Sprint(c), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			logits := put(t, e, kind, values(kind, 1, c.rows*c.vocab, 3))
			labels := make([]float64, c.rows)
			for i := range labels {
				labels[i] = float64(i * 7919 % c.vocab)
			}
			labels[c.rows/2] = op.Ignored
			at, scale := put(t, e, dtype.Int32, labels), put(t, e, dtype.Float32, []float64{0.25})
			r := newReference(t)
			vl := r.input(logits, 1, c.rows, c.vocab)
			loss := op.CrossEntropy(r.g, vl, r.input(at, 1, c.rows))
			back := r.backward(loss, r.input(scale), nil)[0]
			want := r.eval()
			lse := want[loss.Node.Results[1]].Data

			gotLoss, gotLSE, d := blank(t, e, dtype.Float32, 1), blank(t, e, dtype.Float32, c.rows), blank(t, e, kind, c.rows*c.vocab)
			does(t)(e.CrossEntropy(kind, gotLoss.p, gotLSE.p, logits.p, at.p, c.rows, c.vocab))
			does(t)(e.CrossEntropyBackward(kind, d.p, logits.p, at.p, gotLSE.p, scale.p, c.rows, Vocab{0, c.vocab}))
			check := func(what string) {
				near(t, want[loss].Data, gotLoss, 1e-6, what+" loss")
				near(t, lse, gotLSE, 1e-6, what+" lse")
			}
			check("whole")
			near(t, want[back].Data, d, tolerance(kind, 1e-6)/4, "gradient")

			// The vocabulary in two parts, as two ranks have it.
			half := c.vocab / 2 / 8 * 8
			parts := []Vocab{{0, half}, {half, c.vocab - half}}
			var tops, sums, picks [2]array
			top := make([]float64, c.rows)
			for i := range top {
				top[i] = math.Inf(-1)
			}
			var piece [2]array
			for p, v := range parts {
				var x []float64
				for i := range c.rows {
					x = append(x, logits.host[i*c.vocab+v.First:][:v.Size]...)
				}
				piece[p] = put(t, e, kind, x)
				tops[p] = blank(t, e, dtype.Float32, c.rows)
				does(t)(e.RowMax(kind, tops[p].p, piece[p].p, c.rows, v.Size))
				for i, m := range tops[p].get() {
					top[i] = max(top[i], m)
				}
			}
			both := put(t, e, dtype.Float32, top)
			for p, v := range parts {
				sums[p], picks[p] = blank(t, e, dtype.Float32, c.rows), blank(t, e, dtype.Float32, c.rows)
				does(t)(e.RowSums(kind, sums[p].p, picks[p].p, piece[p].p, at.p, both.p, c.rows, v))
			}
			does(t)(e.Add(dtype.Float32, sums[0].p, c.rows, sums[0].p, sums[1].p))
			does(t)(e.Add(dtype.Float32, picks[0].p, c.rows, picks[0].p, picks[1].p))
			does(t)(e.RowLoss(gotLoss.p, gotLSE.p, both.p, sums[0].p, picks[0].p, at.p, c.rows))
			check("in parts")
			for p, v := range parts {
				out := blank(t, e, kind, c.rows*v.Size)
				does(t)(e.CrossEntropyBackward(kind, out.p, piece[p].p, at.p, gotLSE.p, scale.p, c.rows, v))
				var x []float64
				for i := range c.rows {
					x = append(x, want[back].Data[i*c.vocab+v.First:][:v.Size]...)
				}
				near(t, x, out, tolerance(kind, 1e-6)/4, "gradient of a part")
			}

			// Both at once, in place.
			does(t)(e.CrossEntropyBoth(kind, logits.p, gotLoss.p, gotLSE.p, logits.p, at.p, scale.p, c.rows, c.vocab))
			check("at once")
			near(t, want[back].Data, logits, tolerance(kind, 1e-6)/4, "gradient in place")
		})
	}
}

// A row that does not count may hold what is not finite: it adds nothing to the loss, and its gradient is zero.
func TestLossOfRowsThatDoNotCount(t *testing.T) {
	for _, vocab := range []int{33, 2048, 128256} {
		each(t, fmt.Sprint(vocab), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			const rows = 3
			logits := values(kind, 1, rows*vocab, 3)
			finite := put(t, e, kind, logits)
			for j, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				for i := vocab + j; i < 2*vocab; i += 3 {
					logits[i] = x
				}
			}
			odd := put(t, e, kind, logits)
			at, scale := put(t, e, dtype.Int32, []float64{5, op.Ignored, 7}), put(t, e, dtype.Float32, []float64{0.25})
			loss, lse, d := blank(t, e, dtype.Float32, 1), blank(t, e, dtype.Float32, rows), blank(t, e, kind, rows*vocab)
			does(t)(e.CrossEntropyBoth(kind, d.p, loss.p, lse.p, finite.p, at.p, scale.p, rows, vocab))
			wantLoss, want := loss.get(), d.get()
			require.Equal(t, make([]float64, vocab), want[vocab:2*vocab])
			check := func(what string) {
				near(t, wantLoss, loss, 1e-6, what+" loss")
				near(t, want, d, tolerance(kind, 1e-6)/4, what+" gradient")
				require.Equal(t, want[vocab:2*vocab], d.get()[vocab:2*vocab])
			}
			does(t)(e.CrossEntropyBoth(kind, d.p, loss.p, lse.p, odd.p, at.p, scale.p, rows, vocab))
			check("at once")
			does(t)(e.CrossEntropy(kind, loss.p, lse.p, odd.p, at.p, rows, vocab))
			does(t)(e.CrossEntropyBackward(kind, d.p, odd.p, at.p, lse.p, scale.p, rows, Vocab{0, vocab}))
			check("apart")
		})
	}
}
