package exec

import (
	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
)

func gpuFused(c gpuCall) (cuda.Work, error) {
	p := c.attr.(op.FusedAttr).Program
	tensors := make([]tensor, len(c.in))
	for i, t := range c.in {
		tensors[i] = t.tensor
	}
	rows, width := fusedShape(p, tensors)
	pointers := func(ts []gpuTensor) (out []cuda.Ptr) {
		for _, t := range ts {
			out = append(out, t.p)
		}
		return out
	}
	return c.e.Fused(p, rows, width, pointers(c.in), pointers(c.out), c.add)
}

// gpuEinsumAdd adds in the product's epilogue: one rounding.
func gpuEinsumAdd(c gpuCall) (cuda.Work, error) {
	p, a, b, err := gpuProduct(c)
	if err != nil {
		return nil, err
	}
	return c.e.ProductPlus(p, c.out[0].p, a, b, c.in[2].p)
}
