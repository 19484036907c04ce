package exec

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/pass"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// A random float32 graph fused has the bits of its separate ops in every value that is kept: forward and backward, with float8
// products by any recipe and without.
func TestFusedGraphsHaveTheBitsOfTheirOps(t *testing.T) {
	kernels := 0
	rapid.Check(t, func(t *rapid.T) {
		g, keep := randomGraph(t)
		fused, to, did, err := pass.Fuse(g, keep...)
		require.NoError(t, err)
		kernels += did.Kernels
		e, err := cpu.New(cpu.Options{Threads: rapid.IntRange(1, 3).Draw(t, "threads")})
		require.NoError(t, err)
		seed := rapid.Uint64().Draw(t, "seed")
		want, got := onHost(t, e, g, seed), onHost(t, e, fused, seed)
		for _, v := range keep {
			require.True(t, bytes.Equal(want[v].data, got[to(v)].data), "%v of\n%v\nfused\n%v", v.Node, g, fused)
		}
	})
	require.Greater(t, kernels, 100)
}

// randomGraph is a few ops in any order, with the gradients of everything, and what must stay of it.
func randomGraph(t *rapid.T) (*graph.Graph, []*graph.Value) {
	width := rapid.SampledFrom([]int{16, 24, 31}).Draw(t, "width")
	recipe := rapid.SampledFrom([]op.Float8Recipe{"", op.Tensorwise, op.Rowwise, op.RowwiseGWHigh}).Draw(t, "float8")
	var values []*graph.Value
	g, err := graph.Trace(dtype.Float32, func(g *graph.Graph) {
		rows := graph.Type{DType: dtype.Float32, Shape: []int{rapid.IntRange(1, 3).Draw(t, "batch"), rapid.SampledFrom([]int{1, 16, 40}).Draw(t, "seq"), width}}
		values = append(values, g.Input("x", rows))
		pick := func() *graph.Value { return rapid.SampledFrom(values).Draw(t, "value") }
		w, square := g.Param("w", []int64{int64(width)}), g.Param("square", []int64{int64(width), int64(width)})
		for i := range rapid.IntRange(2, 9).Draw(t, "ops") {
			end := g.Scope(fmt.Sprint("layers.", i/3))
			values = append(values, randomOp(t, g, recipe, pick, w, square))
			end()
		}
	})
	require.NoError(t, err)
	out := values[len(values)-1]
	keep := append([]*graph.Value{out, values[0]}, g.Params()...)
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", out.Type) })
	grads, err := pass.Grad(g, out, seed, append([]*graph.Value{values[0]}, g.Params()...))
	require.NoError(t, err)
	for _, d := range append(grads, seed) {
		if d != nil {
			keep = append(keep, d)
		}
	}
	pass.Prune(g, keep...)
	return g, keep
}

func randomOp(t *rapid.T, g *graph.Graph, recipe op.Float8Recipe, pick func() *graph.Value, w, square *graph.Value) *graph.Value {
	switch rapid.IntRange(0, 4).Draw(t, "op") {
	case 0:
		return op.Add(g, pick(), pick())
	case 1:
		return op.Add(g, pick(), pick(), pick())
	case 2:
		return op.SwiGLU(g, pick(), pick())
	case 3:
		return op.RMSNorm(g, pick(), w, 1e-5)
	}
	if recipe == "" {
		return op.Einsum(g, "bsk,nk->bsn", pick(), square)
	}
	return op.Float8Linear(g, recipe, pick(), square)
}

// onHost runs g node by node on inputs and parameters of seed.
func onHost(t *rapid.T, e *cpu.Engine, g *graph.Graph, seed uint64) map[*graph.Value]tensor {
	random, memory := rand.New(rand.NewPCG(seed, 1)), map[*graph.Value]tensor{}
	for _, n := range g.Nodes {
		c := call{e: e, attr: n.Attr, add: make([]bool, len(n.Results))}
		for _, v := range n.In {
			c.in = append(c.in, memory[v])
		}
		for _, v := range n.Results {
			memory[v] = alone(v)
			c.out = append(c.out, memory[v])
		}
		if n.Op == graph.InputOp || n.Op == graph.ParamOp {
			for i := range c.out[0].f32() {
				c.out[0].f32()[i] = float32(random.NormFloat64())
			}
			continue
		}
		run, err := c.bind(&plan.Step{Node: n})
		require.NoError(t, err)
		require.NoError(t, run())
	}
	return memory
}

// alone is memory for a value of which nothing is cut.
func alone(v *graph.Value) tensor {
	out := tensor{Type: v.Type, logical: v.Shape, data: aligned(v.Bytes())}
	for _, n := range v.Shape {
		out.at = append(out.at, placement.Range{Len: n})
	}
	return out
}
