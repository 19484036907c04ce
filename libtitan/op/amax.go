package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/scalar"
)

// Scaling is which elements of a tensor, seen as rows of its last dim, share a scale.
type Scaling uint8

// The scalings.
const (
	PerTensor Scaling = iota
	PerRow            // one for each place of all dims but the last
	PerColumn         // one for each place of the last dim
)

func (s Scaling) String() string { return [...]string{"tensor", "row", "column"}[s] }

// Of is the letters, of a tensor with dims term, of its scales.
func (s Scaling) Of(term string) string {
	last := len(term) - 1
	return [...]string{"", term[:last], term[last:]}[s]
}

// At gives the place of the scale of element i, where rows are width long.
func (s Scaling) At(i, width int) int {
	switch s {
	case PerRow:
		return i / width
	case PerColumn:
		return i % width
	}
	return 0
}

// AmaxAttr says over which elements the largest is taken.
type AmaxAttr struct{ Per Scaling }

// Of a tensor that is cut, parts of a maximum are no parts of a sum: pass/shard joins them.
var amaxOp = &graph.Op{
	Name: "amax",
	Cut:  func(n *graph.Node) []string { return each(letters[:len(n.In[0].Shape)]) },
	Rule: func(n *graph.Node) string {
		l := letters[:len(n.In[0].Shape)]
		return l + "->" + n.Attr.(AmaxAttr).Per.Of(l)
	},
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32} },
	Scalar: func(_ *graph.Node, _ *scalar.Builder, in []scalar.Value) []scalar.Value { return in }, // of a whole tensor
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		per, out := n.Attr.(AmaxAttr).Per, graph.NewArray(n.Results[0].Shape...)
		_, width := rows(in[0])
		for i, x := range in[0].Data {
			at := per.At(i, width)
			out.Data[at] = max(out.Data[at], math.Abs(x))
		}
		return []graph.Array{out}
	},
}

// Amax is the largest magnitude of x, of its rows or of its columns, float32; NaN where there is one.
func Amax(g *graph.Graph, x *graph.Value, per Scaling) *graph.Value {
	return g.Add(amaxOp, AmaxAttr{per}, x)[0]
}
