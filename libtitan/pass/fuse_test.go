package pass_test

import (
	"math/rand/v2"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/pass"
)

// mlp is the second half of a layer with its gradients: the graph, and what must stay of it.
func mlp(t *testing.T, compute dtype.DType, again bool) (*graph.Graph, []*graph.Value) {
	t.Helper()
	const B, S, D, F = 2, 4, 8, 16
	var x, out *graph.Value
	g, err := graph.Trace(compute, func(g *graph.Graph) {
		param := func(name string, shape ...int64) *graph.Value { return op.Cast(g, g.Param(name, shape), compute) }
		x = g.Input("hidden", graph.Type{DType: compute, Shape: []int{B, S, D}})
		defer g.Scope("layers.0")()
		h := op.RMSNorm(g, x, param("norm", D), 1e-5)
		gate, up := op.Einsum(g, "bsk,nk->bsn", h, param("w1", F, D)), op.Einsum(g, "bsk,nk->bsn", h, param("w3", F, D))
		y := op.Add(g, x, op.Einsum(g, "bsk,nk->bsn", op.SwiGLU(g, gate, up), param("w2", D, F)))
		out = op.RMSNorm(g, y, param("last", D), 1e-5)
	})
	require.NoError(t, err)
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", out.Type) })
	keep := append([]*graph.Value{x, out, seed}, g.Params()...)
	grads, err := pass.Grad(g, out, seed, append([]*graph.Value{x}, g.Params()...))
	require.NoError(t, err)
	keep = append(keep, grads...)
	if again {
		var to func(v *graph.Value) *graph.Value
		g, to = pass.Remat(g, func(n *graph.Node) bool { return n.Op.Name != "swiglu" })
		keep = moved(keep, to)
	}
	return g, keep
}

func moved(vs []*graph.Value, to func(v *graph.Value) *graph.Value) (out []*graph.Value) {
	for _, v := range vs {
		out = append(out, to(v))
	}
	return out
}

// The graph of half a layer before and after: in float32 with its activation computed again, and in bfloat16. What is fused
// stays as it is when it is fused again.
func TestFuseDumps(t *testing.T) {
	const path = "testdata/fuse.txtar"
	want, err := txtar.ParseFile(path)
	require.NoError(t, err)
	got := &txtar.Archive{Comment: want.Comment}
	add := func(name string, g *graph.Graph) {
		got.Files = append(got.Files, txtar.File{Name: name, Data: []byte(g.String())})
	}
	for _, c := range []struct {
		name    string
		compute dtype.DType
		again   bool
	}{{"float32, swiglu again", dtype.Float32, true}, {"bfloat16", dtype.BFloat16, false}} {
		g, keep := mlp(t, c.compute, c.again)
		add(c.name, g)
		fused, to, did, err := pass.Fuse(g, keep...)
		require.NoError(t, err)
		require.Greater(t, did.Nodes, did.Kernels)
		add(c.name+", fused", fused)
		twice, _, did, err := pass.Fuse(fused, moved(keep, to)...)
		require.NoError(t, err)
		require.Equal(t, fused.String(), twice.String())
		require.Zero(t, did.Nodes)
	}
	if *update {
		require.NoError(t, os.WriteFile(path, txtar.Format(got), 0o644))
	}
	require.Equal(t, string(txtar.Format(want)), string(txtar.Format(got)))
}

// A fused graph has the values of the graph that it was made of: here of random ones, forward and backward.
func TestFuseKeepsValues(t *testing.T) {
	fused := 0
	rapid.Check(t, func(t *rapid.T) {
		g, keep := randomGraph(t)
		now, to, did, err := pass.Fuse(g, keep...)
		require.NoError(t, err)
		fused += did.Kernels
		random := rand.New(rand.NewPCG(1, 1))
		feed, again := map[*graph.Value]graph.Array{}, map[*graph.Value]graph.Array{}
		for _, n := range g.Nodes {
			if v := n.Results[0]; n.Op == graph.InputOp || n.Op == graph.ParamOp {
				a := graph.NewArray(v.Shape...)
				for i := range a.Data {
					a.Data[i] = random.NormFloat64()
				}
				feed[v], again[to(v)] = a, a
			}
		}
		want, err := op.Eval(g, feed)
		require.NoError(t, err)
		got, err := op.Eval(now, again)
		require.NoError(t, err)
		for _, v := range keep {
			require.InDeltaSlice(t, want[v].Data, got[to(v)].Data, 1e-9)
		}
	})
	require.Greater(t, fused, 50)
}

// randomGraph is a few layers of ops in any order, with the gradients of everything.
func randomGraph(t *rapid.T) (*graph.Graph, []*graph.Value) {
	var values []*graph.Value
	g, err := graph.Trace(dtype.Float32, func(g *graph.Graph) {
		values = append(values, g.Input("x", graph.Type{DType: dtype.Float32, Shape: []int{2, 3, 4}}))
		pick := func() *graph.Value { return rapid.SampledFrom(values).Draw(t, "value") }
		w, square := g.Param("w", []int64{4}), g.Param("square", []int64{4, 4})
		for range rapid.IntRange(2, 8).Draw(t, "ops") {
			var v *graph.Value
			switch rapid.IntRange(0, 4).Draw(t, "op") {
			case 0:
				v = op.Add(g, pick(), pick())
			case 1:
				v = op.Add(g, pick(), pick(), pick())
			case 2:
				v = op.SwiGLU(g, pick(), pick())
			case 3:
				v = op.RMSNorm(g, pick(), w, 1e-5)
			case 4:
				v = op.Einsum(g, "bsk,nk->bsn", pick(), square)
			}
			values = append(values, v)
		}
	})
	require.NoError(t, err)
	out := values[len(values)-1]
	keep := append([]*graph.Value{out, values[0]}, g.Params()...)
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", out.Type) })
	wrt := append([]*graph.Value{values[0]}, g.Params()...)
	grads, err := pass.Grad(g, out, seed, wrt)
	require.NoError(t, err)
	for _, d := range append(grads, seed) {
		if d != nil {
			keep = append(keep, d)
		}
	}
	pass.Prune(g, keep...)
	return g, keep
}
