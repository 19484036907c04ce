package exec

import (
	"fmt"

	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// compileFused compiles the kernels of prog's fused steps beside each other: the same program serves all layers.
func compileFused(e *cuda.Engine, prog *plan.Program) error {
	var shapes []cuda.FusedShape
	seen := map[string]bool{}
	for i := range prog.Steps {
		s := &prog.Steps[i]
		if s.Kind != plan.Compute {
			continue
		}
		a, ok := s.Node.Attr.(op.FusedAttr)
		if !ok {
			continue
		}
		var in []tensor
		for _, slot := range s.In {
			in = append(in, tensor{Type: slot.Type})
		}
		_, width := fusedShape(a.Program, in)
		if key := fmt.Sprint(a.Hash(), width); !seen[key] {
			seen[key] = true
			shapes = append(shapes, cuda.FusedShape{Program: a.Program, Width: width})
		}
	}
	return e.CompileFused(shapes)
}

func gpuFused(c gpuCall) (cuda.Work, error) {
	p := c.attr.(op.FusedAttr).Program
	rows, width := fusedShape(p, hostless(c.in))
	pointers := func(ts []gpuTensor) (out []cuda.Ptr) {
		for _, t := range ts {
			out = append(out, t.p)
		}
		return out
	}
	return c.e.Fused(p, rows, width, pointers(c.in), pointers(c.out), c.add)
}
