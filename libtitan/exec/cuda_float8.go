package exec

import (
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
)

func gpuAmax(c gpuCall) (cuda.Work, error) {
	x := c.in[0]
	rows, width := x.rows()
	return c.e.Amax(x.DType, c.out[0].p, x.p, rows, width, cuda.Scaling(c.attr.(op.AmaxAttr).Per))
}

func gpuFloat8Cast(c gpuCall) (cuda.Work, error) {
	x, a := c.in[0], c.attr.(op.Float8CastAttr)
	rows, width := x.rows()
	m := cuda.Float8{Type: a.To, Q: c.out[0].p, Inverse: c.out[1].p, Per: cuda.Scaling(a.Per)}
	switch a.Copies {
	case op.Turned:
		m.Q, m.Turned = 0, m.Q
	case op.Both:
		m.Turned = c.out[2].p
	}
	return c.e.Float8Cast(m, x.DType, x.p, c.in[1].p, rows, width, a.Power2)
}

func gpuFloat8Turn(c gpuCall) (cuda.Work, error) {
	rows, width := c.in[0].rows()
	return c.e.Float8Turn(c.out[0].p, c.in[0].p, rows, width)
}

// gpuFloat8Product is a product whose operands have the dims that are summed over last: pass.Float8Turn has seen to it.
func gpuFloat8Product(c gpuCall) (cuda.Work, error) {
	attr := c.attr.(op.Float8ProductAttr)
	p, err := lower(attr.Stored(), c.in[0].Shape, c.in[2].Shape)
	if err == nil && (p.transA || !p.transB) {
		err = fmt.Errorf("%s does not sum over the last dims", attr.Stored())
	}
	if err != nil {
		return nil, err
	}
	a, b, aPer, bPer := c.in[:2], c.in[2:], attr.A, attr.B
	if p.swap {
		a, b, aPer, bPer = b, a, bPer, aPer
	}
	return c.e.Float8Product(cuda.Float8Product{
		M: p.m, N: p.n, K: p.k, A: a[0].DType, B: b[0].DType, Out: c.out[0].DType, RowsA: aPer != op.PerTensor, RowsB: bPer != op.PerTensor,
		Fast: attr.Fast, Add: c.add[0],
	}, c.out[0].p, a[0].p, a[1].p, b[0].p, b[1].p)
}
