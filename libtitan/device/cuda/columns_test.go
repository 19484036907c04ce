package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// columns are room for rows of width elements in a matrix that has others before and after them.
type columns struct {
	array
	rows, width int
}

func newColumns(t *testing.T, e *Engine, kind dtype.DType, rows, width int) columns {
	return columns{blank(t, e, kind, rows*(width+3*besides)), rows, width}
}

// besides is how many elements stand before them in each row; twice as many come after.
const besides = 24

func (c columns) at() Columns { return Columns{c.p + Ptr(besides*c.kind.Size()), c.width + 3*besides} }

// requireSame checks that the columns hold what a dense matrix holds, bit for bit, and that nothing beside them is written.
func (c columns) requireSame(dense array, what string) {
	row, all, want := c.width+3*besides, c.get(), dense.get()
	for r := range c.rows {
		require.Equal(c.t, want[r*c.width:][:c.width], all[r*row+besides:][:c.width], "%s: row %d", what, r)
		for _, x := range append(all[r*row:][:besides], all[r*row+besides+c.width:][:2*besides]...) {
			require.NotEqual(c.t, x, x, "%s: beside row %d", what, r)
		}
	}
}

// What is turned may go into columns of a wider matrix.
func TestRopeIntoColumns(t *testing.T) {
	const batch, seq, heads = 2, 37, 3
	for _, dim := range []int{8, 64, 128} {
		each(t, fmt.Sprint(dim), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			rows, width := batch*seq, heads*dim
			x := random(t, e, kind, 1, rows*width)
			cos, sin := random(t, e, dtype.Float32, 4, seq*dim/2), random(t, e, dtype.Float32, 5, seq*dim/2)
			y, into := blank(t, e, kind, rows*width), newColumns(t, e, kind, rows, width)
			does(t)(e.Rope(kind, Columns{P: y.p}, x.p, cos.p, sin.p, batch, seq, heads, dim, true))
			does(t)(e.Rope(kind, into.at(), x.p, cos.p, sin.p, batch, seq, heads, dim, true))
			into.requireSame(y, "rope")
		})
	}
}

// dv may be columns, of our own kernel and of cuDNN's, which takes such a graph.
func TestAttentionIntoColumns(t *testing.T) {
	for _, s := range []AttnShape{
		attnShape(1, 97, 97, 2, 2, 16, 0, 0), attnShape(2, 130, 130, 3, 1, 64, 0, 0),
		attnShape(2, 384, 384, 8, 2, 64, 0, 0), attnShape(1, 512, 512, 4, 4, 128, 0, 0), attnShape(1, 1024, 1024, 32, 8, 128, 0, 0),
	} {
		each(t, fmt.Sprint(s), func(t *testing.T, kind dtype.DType) {
			e := gpu(t)
			a := newAttnArrays(t, e, kind, s)
			into := newColumns(t, e, kind, s.Batch*s.SeqK, s.KVHeads*s.HeadDim)
			does(t)(e.Attention(kind, a.o.p, a.lse.p, a.q.p, a.k.p, a.v.p, s))
			does(t)(e.tiledAttentionBackward(kind, a.dq.p, a.dk.p, Columns{P: a.dv.p}, a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s))
			does(t)(e.tiledAttentionBackward(kind, a.dq.p, a.dk.p, into.at(), a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s))
			into.requireSame(a.dv, "our own")
			if kind == dtype.Float32 || !s.fused() {
				return
			}
			does(t)(e.fusedAttentionBackward(a.dq.p, a.dk.p, Columns{P: a.dv.p}, a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s))
			does(t)(e.fusedAttentionBackward(a.dq.p, a.dk.p, into.at(), a.do.p, a.q.p, a.k.p, a.v.p, a.o.p, a.lse.p, s))
			into.requireSame(a.dv, "cuDNN's")
		})
	}
}
