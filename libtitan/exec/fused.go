package exec

import (
	"titan/libtitan/device/cpu"
	"titan/libtitan/op"
	"titan/libtitan/scalar"
)

// fusedShape is the rows of a fused program's whole values.
func fusedShape(p *scalar.Program, in []tensor) (rows, width int) {
	for i, o := range p.In {
		if o.Kind == scalar.Full {
			rows, width = in[i].rows()
		}
	}
	return rows, width
}

func bindFused(c call) (kernel, error) {
	p := c.attr.(op.FusedAttr).Program
	if err := cpu.Fusible(p); err != nil {
		return nil, err
	}
	values := func(ts []tensor) []cpu.Values {
		out := make([]cpu.Values, len(ts))
		for i, t := range ts {
			if t.narrow() {
				out[i].BF16 = t.bf16()
			} else {
				out[i].F32 = t.f32()
			}
		}
		return out
	}
	rows, width := fusedShape(p, c.in)
	in, out := values(c.in), values(c.out)
	return sure(func() { c.e.Fused(p, rows, width, in, out, c.add) }), nil
}
