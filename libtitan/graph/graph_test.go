package graph

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// product contracts the last dims of two matrices.
var product = &Op{Name: "product", Rule: func(*Node) string { return "mk,nk->mn" }}

func matrix(rows, columns int) Type { return Type{DType: dtype.Float32, Shape: []int{rows, columns}} }

// chain is two products, one in each phase, under module names.
func chain(t *testing.T) *Graph {
	g, err := Trace(dtype.Float32, func(g *Graph) {
		defer g.Scope("layers.0")()
		x := g.Input("x", matrix(2, 3))
		end := g.Scope("w1")
		y := g.Add(product, nil, x, g.Param("layers.0.w1.weight", []int64{4, 3}))[0]
		end()
		g.In(Backward, "layers.0.w2", func() { g.Add(product, nil, y, g.Param("layers.0.w2.weight", []int64{5, 4})) })
	})
	require.NoError(t, err)
	return g
}

func TestTrace(t *testing.T) {
	g := chain(t)
	require.Equal(t, `%0 float32[2,3] = input  fwd x
%1 float32[4,3] = param  fwd layers.0.w1.weight
%2 float32[2,4] = product %0 %1  fwd layers.0.w1
%3 float32[5,4] = param  bwd layers.0.w2.weight
%4 float32[2,5] = product %2 %3  bwd layers.0.w2
`, g.String())
	require.Len(t, g.Params(), 2)
	require.Same(t, g.Params()[0], g.Param("layers.0.w1.weight", []int64{4, 3}), "asking twice gives one value")
}

func TestTraceSaysWhatDoesNotFit(t *testing.T) {
	for want, in := range map[string][]Type{
		"graph: module w: product: 1 inputs for rule mk,nk->mn":                            {matrix(2, 3)},
		"graph: module w: product: input 1 has shape [4 5], but k is 3 in rule mk,nk->mn":  {matrix(2, 3), matrix(4, 5)},
		"graph: module w: product: input 0 has shape [7], rule mk,nk->mn wants 2 dims":     {{DType: dtype.Float32, Shape: []int{7}}, matrix(2, 3)},
		"graph: module w: product: input 1 has shape [], rule mk,nk->mn wants 2 dims":      {matrix(2, 3), {DType: dtype.Float32}},
		"graph: module w: product: input 0 has shape [2 3 4], rule mk,nk->mn wants 2 dims": {{DType: dtype.Float32, Shape: []int{2, 3, 4}}, matrix(2, 3)},
		"graph: module w: product: 3 inputs for rule mk,nk->mn":                            {matrix(2, 3), matrix(2, 3), matrix(2, 3)},
	} {
		_, err := Trace(dtype.Float32, func(g *Graph) {
			defer g.Scope("w")()
			var values []*Value
			for _, typ := range in {
				values = append(values, g.Input("x", typ))
			}
			g.Add(product, nil, values...)
		})
		require.EqualError(t, err, want)
	}
	require.Panics(t, func() { _, _ = Trace(dtype.Float32, func(*Graph) { panic("another panic goes on") }) })
}

func TestVerify(t *testing.T) {
	for want, spoil := range map[string]func(g *Graph){
		"graph: module layers.0.w1: product: node 2 stands at position 1": func(g *Graph) { g.Nodes[1], g.Nodes[2] = g.Nodes[2], g.Nodes[1] },
		"graph: module layers.0.w1: product: reads %1 before it is made": func(g *Graph) {
			g.Nodes[1], g.Nodes[2] = g.Nodes[2], g.Nodes[1]
			g.Nodes[1].ID, g.Nodes[2].ID = 1, 2
		},
		"graph: module layers.0.w2: product: a fwd node reads %3 of the bwd":                        func(g *Graph) { g.Nodes[4].Phase = Forward },
		"graph: module layers.0.w2: product: result 0 is float32[2,6], its rule gives float32[2,5]": func(g *Graph) { g.Nodes[4].Results[0].Shape = []int{2, 6} },
	} {
		g := chain(t)
		spoil(g)
		require.EqualError(t, g.Verify(), want)
	}
}
