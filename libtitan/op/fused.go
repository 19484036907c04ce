package op

import (
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/scalar"
)

// FusedAttr is the program of a fused kernel over values of Dims dims, whose last is the rows'.
type FusedAttr struct {
	*scalar.Program
	Dims int
}

// term is the letters of a port of a program.
func (a FusedAttr) term(p scalar.Port) string {
	l := letters[:a.Dims]
	switch p.Kind {
	case scalar.Row:
		return l[:a.Dims-1]
	case scalar.Col:
		return l[a.Dims-1:]
	case scalar.One:
		return ""
	}
	return l
}

func (a FusedAttr) terms(ports []scalar.Port) string {
	var t []string
	for _, p := range ports {
		t = append(t, a.term(p))
	}
	return strings.Join(t, ",")
}

// fusedOp is made after the graph was differentiated and laid out: it has no gradient and no cuts.
var fusedOp = &graph.Op{
	Name:   "fused",
	CanAdd: true,
	Rule: func(n *graph.Node) string {
		a := n.Attr.(FusedAttr)
		return a.terms(a.In) + "->" + a.terms(a.Out)
	},
	DTypes: func(n *graph.Node) (out []dtype.DType) {
		for _, p := range n.Attr.(FusedAttr).Out {
			out = append(out, p.DType)
		}
		return out
	},
	Eval: evalFused,
}

// Fused runs a program on values.
func Fused(g *graph.Graph, a FusedAttr, in ...*graph.Value) []*graph.Value {
	return g.Add(fusedOp, a, in...)
}

// Scalar is how a node does its work element by element: the shape and layout of its Full values, and the kinds of its
// inputs and results. ok is false where the op does no such thing.
func Scalar(n *graph.Node) (full *graph.Value, in, out []scalar.Kind, ok bool) {
	if a, ok := n.Attr.(AmaxAttr); n.Op.Scalar == nil || ok && a.Per != PerTensor {
		return nil, nil, nil, false
	}
	left, right, _ := strings.Cut(n.Op.Rule(n), "->")
	values := append(append([]*graph.Value{}, n.In...), n.Results...)
	terms := append(strings.Split(left, ","), strings.Split(right, ",")...)
	row := ""
	for i, t := range terms {
		if len(t) > len(row) {
			row, full = t, values[i]
		}
	}
	for i, t := range terms {
		var k scalar.Kind
		switch t {
		case row:
			k = scalar.Full
		case row[:max(len(row)-1, 0)]:
			k = scalar.Row
		case row[max(len(row)-1, 0):]:
			k = scalar.Col
		case "":
			k = scalar.One
		default:
			return nil, nil, nil, false
		}
		if i < len(n.In) {
			in = append(in, k)
		} else {
			out = append(out, k)
		}
	}
	return full, in, out, full != nil
}

// evalFused is the reference: the program, element by element.
func evalFused(n *graph.Node, in []graph.Array) []graph.Array {
	a := n.Attr.(FusedAttr)
	var full graph.Array
	for i, p := range a.In {
		if p.Kind == scalar.Full {
			full = in[i]
		}
	}
	numRows, width := rows(full)
	data := make([][]float64, len(in))
	for i := range in {
		data[i] = in[i].Data
	}
	results := scalar.Eval(a.Program, data, numRows, width)
	var out []graph.Array
	for i, r := range results {
		out = append(out, graph.Array{Shape: n.Results[i].Shape, Data: r})
	}
	return out
}
