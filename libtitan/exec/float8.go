package exec

import (
	"titan/libtitan/device/cpu"
	"titan/libtitan/op"
)

func bindAmax(c call) (kernel, error) {
	x, out := c.in[0], c.out[0].f32()
	rows, width := x.rows()
	per := cpu.Scaling(c.attr.(op.AmaxAttr).Per)
	if x.narrow() {
		return sure(func() { c.e.AmaxBF16(out, x.bf16(), rows, width, per) }), nil
	}
	return sure(func() { c.e.Amax(out, x.f32(), rows, width, per) }), nil
}

func bindFloat8Cast(c call) (kernel, error) {
	x, amax, a := c.in[0], c.in[1].f32(), c.attr.(op.Float8CastAttr)
	rows, width := x.rows()
	m := float8Matrix(c.out[0], c.out[1], a.Per)
	switch a.Copies {
	case op.Turned:
		m.Q, m.Turned = nil, m.Q
	case op.Both:
		m.Turned = c.out[2].data
	}
	if x.narrow() {
		return sure(func() { c.e.Float8CastBF16(m, x.bf16(), amax, rows, width, a.Power2) }), nil
	}
	return sure(func() { c.e.Float8Cast(m, x.f32(), amax, rows, width, a.Power2) }), nil
}

func bindFloat8Turn(c call) (kernel, error) {
	rows, width := c.in[0].rows()
	return sure(func() { c.e.Float8Turn(c.out[0].data, c.in[0].data, rows, width) }), nil
}

func float8Matrix(q, inverse tensor, per op.Scaling) cpu.Float8Matrix {
	return cpu.Float8Matrix{Type: q.DType, Q: q.data, Inverse: inverse.f32(), Per: cpu.Scaling(per)}
}

func bindFloat8Product(c call) (kernel, error) {
	attr := c.attr.(op.Float8ProductAttr)
	p, err := lower(attr.Stored(), c.in[0].Shape, c.in[2].Shape)
	if err != nil {
		return nil, err
	}
	a, b := float8Matrix(c.in[0], c.in[1], lying(attr.A, attr.TurnedA)), float8Matrix(c.in[2], c.in[3], lying(attr.B, attr.TurnedB))
	if p.swap {
		a, b = b, a
	}
	out, add := c.out[0], c.add[0]
	if out.narrow() {
		return sure(func() { c.e.GemmFloat8Out(p.transA, p.transB, p.m, p.n, p.k, a, b, out.bf16()) }), nil
	}
	return sure(func() { c.e.GemmFloat8(p.transA, p.transB, p.m, p.n, p.k, a, b, out.f32(), add) }), nil
}

// lying is which elements of a matrix as it lies share a scale: columns that were turned are rows.
func lying(s op.Scaling, turned bool) op.Scaling {
	if turned && s == op.PerColumn {
		return op.PerRow
	}
	return s
}
