package cpu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/scalar"
)

// separate is an op that has a kernel of its own beside the program that says what it does.
type separate struct {
	name  string
	build func(g *graph.Graph, in func(shape ...int) *graph.Value, rows, width int) *graph.Value
	back  bool // its backward
	f32   func(e *Engine, out, in [][]float32, rows, width int)
	bf16  func(e *Engine, out, in []Values, rows, width int)
}

func separates() []separate {
	const eps = 1e-5
	norm := func(g *graph.Graph, in func(shape ...int) *graph.Value, rows, width int) *graph.Value {
		return op.RMSNorm(g, in(1, rows, width), in(width), eps)
	}
	swiglu := func(g *graph.Graph, in func(shape ...int) *graph.Value, rows, width int) *graph.Value {
		return op.SwiGLU(g, in(1, rows, width), in(1, rows, width))
	}
	amax := func(g *graph.Graph, in func(shape ...int) *graph.Value, rows, width int) *graph.Value {
		return op.Amax(g, in(1, rows, width), op.PerTensor)
	}
	return []separate{
		sumOf(2), sumOf(3), sumOf(5),
		{"amax", amax, false, func(e *Engine, out, in [][]float32, rows, width int) {
			e.Amax(out[0], in[0], rows, width, PerTensor)
		}, func(e *Engine, out, in []Values, rows, width int) {
			e.AmaxBF16(out[0].F32, in[0].BF16, rows, width, PerTensor)
		}},
		{"rmsnorm", norm, false, func(e *Engine, out, in [][]float32, rows, width int) {
			e.RMSNorm(out[0], out[1], in[0], in[1], rows, width, eps)
		}, func(e *Engine, out, in []Values, rows, width int) {
			e.RMSNormBF16(out[0].BF16, out[1].F32, in[0].BF16, in[1].BF16, rows, width, eps)
		}},
		{"rmsnorm backward", norm, true, func(e *Engine, out, in [][]float32, rows, width int) {
			e.RMSNormBackward(out[0], out[1], in[0], in[1], in[2], in[3], rows, width, false)
		}, func(e *Engine, out, in []Values, rows, width int) {
			e.RMSNormBackwardBF16(out[0].BF16, out[1].F32, in[0].BF16, in[1].BF16, in[2].BF16, in[3].F32, rows, width, false)
		}},
		{"swiglu", swiglu, false, func(e *Engine, out, in [][]float32, rows, width int) {
			e.SwiGLU(out[0], in[0], in[1])
		}, func(e *Engine, out, in []Values, rows, width int) {
			e.SwiGLUBF16(out[0].BF16, in[0].BF16, in[1].BF16)
		}},
		{"swiglu backward", swiglu, true, func(e *Engine, out, in [][]float32, rows, width int) {
			e.SwiGLUBackward(out[0], out[1], in[0], in[1], in[2])
		}, func(e *Engine, out, in []Values, rows, width int) {
			e.SwiGLUBackwardBF16(out[0].BF16, out[1].BF16, in[0].BF16, in[1].BF16, in[2].BF16)
		}},
	}
}

func sumOf(n int) separate {
	return separate{fmt.Sprint("sum of ", n), func(g *graph.Graph, in func(shape ...int) *graph.Value, rows, width int) *graph.Value {
		var terms []*graph.Value
		for range n {
			terms = append(terms, in(1, rows, width))
		}
		return op.Add(g, terms...)
	}, false, func(e *Engine, out, in [][]float32, rows, width int) {
		e.Add(out[0], in...)
	}, func(e *Engine, out, in []Values, rows, width int) {
		var terms [][]uint16
		for _, v := range in {
			terms = append(terms, v.BF16)
		}
		e.AddBF16(out[0].BF16, terms...)
	}}
}

// program is what the op says that it does.
func (s separate) program(t require.TestingT, compute dtype.DType, rows, width int) *scalar.Program {
	var b scalar.Builder
	_, err := graph.Trace(compute, func(g *graph.Graph) {
		in := func(shape ...int) *graph.Value {
			if len(shape) == 1 { // a weight, whose gradient is float32
				return op.Cast(g, g.Param("w", []int64{int64(shape[0])}), compute)
			}
			return g.Input("x", graph.Type{DType: compute, Shape: shape})
		}
		n := s.build(g, in, rows, width).Node
		if s.back {
			n = n.Op.VJP(g, n, []*graph.Value{in(1, rows, width)})[0].Node
		}
		_, kinds, results, _ := op.Scalar(n)
		var args []scalar.Value
		for i, v := range n.In {
			args = append(args, b.Input(v.DType, kinds[i]))
		}
		for i, x := range n.Op.Scalar(n, &b, args) {
			b.Output(x, n.Results[i].DType, results[i])
		}
	})
	require.NoError(t, err)
	return b.Program()
}

// memory is random values for ports.
func memory(ports []scalar.Port, rows, width int, seed uint64) []Values {
	size := map[scalar.Kind]int{scalar.Full: rows * width, scalar.Row: rows, scalar.Col: width, scalar.One: 1}
	out := make([]Values, len(ports))
	for i, p := range ports {
		x := random(seed+uint64(i), size[p.Kind])
		if p.DType == dtype.BFloat16 {
			out[i].BF16 = bf16(x)
		} else {
			out[i].F32 = x
		}
	}
	return out
}

func floats(vs []Values) [][]float32 {
	out := make([][]float32, len(vs))
	for i, v := range vs {
		out[i] = v.F32
	}
	return out
}

// An op's own kernel has the bits of its program: whether it is fused shows in no bit of float32.
func TestSeparateKernelsAreTheirPrograms(t *testing.T) {
	all := engines(1, 2)
	for _, s := range separates() {
		for _, compute := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
			t.Run(fmt.Sprint(s.name, " ", compute), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					rows, width := rapid.IntRange(1, 2*rowGrain+9).Draw(t, "rows"), rapid.IntRange(1, 130).Draw(t, "width")
					e, seed := rapid.SampledFrom(all).Draw(t, "engine"), rapid.Uint64().Draw(t, "seed")
					p := s.program(t, compute, rows, width)
					in, want, got := memory(p.In, rows, width, seed), memory(p.Out, rows, width, seed+50), memory(p.Out, rows, width, seed+60)
					if compute == dtype.Float32 {
						s.f32(e, floats(want), floats(in), rows, width)
					} else {
						s.bf16(e, want, in, rows, width)
					}
					e.Fused(p, rows, width, in, got, make([]bool, len(got)))
					for i := range want {
						sameBits(t, want[i].F32, got[i].F32, e.Name(), i, p)
						sameBits(t, want[i].BF16, got[i].BF16, e.Name(), i, p)
					}
				})
			})
		}
	}
}

// BenchmarkPrograms measures each op by its own kernel and by its program, in bytes read and written.
func BenchmarkPrograms(b *testing.B) {
	e, err := New(Options{})
	require.NoError(b, err)
	const rows, width = 2048, 768
	for _, s := range separates() {
		p := s.program(b, dtype.Float32, rows, width)
		in, out := memory(p.In, rows, width, 1), memory(p.Out, rows, width, 2)
		bytes := 0
		for _, v := range append(in, out...) {
			bytes += 4 * len(v.F32)
		}
		for _, c := range []struct {
			name string
			run  func()
		}{
			{"own", func() { s.f32(e, floats(out), floats(in), rows, width) }},
			{"program", func() { e.Fused(p, rows, width, in, out, make([]bool, len(out))) }},
		} {
			b.Run(s.name+"/"+c.name, func(b *testing.B) {
				b.SetBytes(int64(bytes))
				for b.Loop() {
					c.run()
				}
			})
		}
	}
}
