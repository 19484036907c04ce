package pass_test

import (
	"flag"
	"math"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/pass"
)

var update = flag.Bool("u", false, "rewrite the dumps")

// Two linear layers of one input, one of which is chosen: the graph before, after the pass by each recipe, and after Grad.
func TestFloat8Dumps(t *testing.T) {
	const path = "testdata/float8.txtar"
	want, err := txtar.ParseFile(path)
	require.NoError(t, err)
	got := &txtar.Archive{Comment: want.Comment}
	add := func(name string, g *graph.Graph) {
		got.Files = append(got.Files, txtar.File{Name: name, Data: []byte(g.String())})
	}
	for _, r := range []op.Float8Recipe{op.Tensorwise, op.Rowwise, op.RowwiseGWHigh} {
		g, out := twoLayers(t)
		if r == op.Tensorwise {
			add("before", g)
		}
		require.Equal(t, []string{"a", "b"}, []string{pass.Linears(g)[0].FQN, pass.Linears(g)[1].FQN})
		g, to := pass.Float8(g, r, func(l pass.Linear) bool { return l.FQN == "b" && l.Weight.Name() == "b.weight" }, out)
		require.NoError(t, g.Verify())
		add(string(r), g)
		var seed *graph.Value
		g.In(graph.Backward, "", func() { seed = g.Input("gradient", to(out).Type) })
		grads, err := pass.Grad(g, to(out), seed, g.Params())
		require.NoError(t, err)
		for _, d := range grads {
			require.Equal(t, dtype.Float32, d.DType)
		}
		add(string(r)+", with gradients", g)
		g, _ = pass.Float8Turn(g, false)
		require.NoError(t, g.Verify())
		add(string(r)+", turned", g)
	}
	if *update {
		require.NoError(t, os.WriteFile(path, txtar.Format(got), 0o644))
	}
	require.Equal(t, string(txtar.Format(want)), string(txtar.Format(got)))
}

// Layers of one input share what is made float8 of it, in the forward and in the backward.
func TestFloat8SharesOperands(t *testing.T) {
	for r, want := range map[op.Float8Recipe]int{op.Tensorwise: 1 + 2 + 2, op.Rowwise: 1 + 2 + 1 + 2 + 4, op.RowwiseGWHigh: 1 + 2 + 2 + 2} {
		g, out := twoLayers(t)
		g, to := pass.Float8(g, r, func(pass.Linear) bool { return true }, out)
		_, err := pass.Grad(g, to(out), to(out), g.Params())
		require.NoError(t, err)
		casts := 0
		for _, n := range g.Nodes {
			if n.Op.Name == "float8_cast" {
				casts++
			}
		}
		require.Equal(t, want, casts, r)
	}
}

// Turned operands give the same numbers, every product sums over the last dims of both, and no copy is made that nobody reads.
func TestFloat8TurnChangesNoNumber(t *testing.T) {
	for _, r := range []op.Float8Recipe{op.Tensorwise, op.Rowwise, op.RowwiseGWHigh} {
		turnChangesNoNumber(t, r, false)
		turnChangesNoNumber(t, r, true)
	}
}

func turnChangesNoNumber(t *testing.T, r op.Float8Recipe, late bool) {
	g, out := twoLayers(t)
	g, to := pass.Float8(g, r, func(pass.Linear) bool { return true }, out)
	out = to(out)
	var seed *graph.Value
	g.In(graph.Backward, "", func() { seed = g.Input("gradient", out.Type) })
	outs, err := pass.Grad(g, out, seed, g.Params())
	require.NoError(t, err)
	outs = append(outs, out)
	turned, to := pass.Float8Turn(g, late)
	require.NoError(t, turned.Verify())
	want, got := evaluate(t, g), evaluate(t, turned)
	for _, v := range outs {
		require.Equal(t, want[v], got[to(v)], r)
	}
	read := map[*graph.Value]bool{}
	for _, n := range turned.Nodes {
		for _, v := range n.In {
			read[v] = true
		}
		if a, ok := n.Attr.(op.Float8ProductAttr); ok {
			require.Equal(t, !a.TermsLast(false), a.TurnedA)
			require.Equal(t, !a.TermsLast(true), a.TurnedB)
		}
	}
	for _, n := range turned.Nodes {
		for _, v := range n.Results {
			again := op.Again(n) // a scale that is there already
			require.True(t, read[v] || n.Op.Name != "float8_cast" || again && v.Out == 1, "%s: result %d of %s", r, v.Out, n)
			require.True(t, late && r == op.Tensorwise || n.Op.Name != "float8_cast" || !again, "%s", n)
		}
	}
}

// evaluate computes g on numbers that follow from names and places.
func evaluate(t *testing.T, g *graph.Graph) map[*graph.Value]graph.Array {
	feed := map[*graph.Value]graph.Array{}
	for _, n := range g.Nodes {
		if n.Op == graph.ParamOp || n.Op == graph.InputOp {
			a := graph.NewArray(n.Results[0].Shape...)
			for i := range a.Data {
				a.Data[i] = math.Sin(float64(i * (3 + len(n.FQN))))
			}
			feed[n.Results[0]] = a
		}
	}
	vals, err := op.Eval(g, feed)
	require.NoError(t, err)
	return vals
}

func twoLayers(t *testing.T) (g *graph.Graph, out *graph.Value) {
	g, err := graph.Trace(dtype.BFloat16, func(g *graph.Graph) {
		x := g.Input("x", graph.Type{DType: dtype.BFloat16, Shape: []int{2, 8, 16}})
		layer := func(name string) *graph.Value {
			defer g.Scope(name)()
			return op.Einsum(g, "bsk,nk->bsn", x, op.Cast(g, g.Param(name+".weight", []int64{32, 16}), dtype.BFloat16))
		}
		out = op.SwiGLU(g, layer("a"), layer("b"))
	})
	require.NoError(t, err)
	return g, out
}
