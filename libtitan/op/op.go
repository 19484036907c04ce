// Package op holds the operations that models and their gradients are made of, one a file. An op is data
// (graph.Op): an index rule that gives its shapes and its layouts, a VJP, and a float64 reference. Each has a
// function, named after it, that applies it.
package op

import (
	"fmt"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// rule is an index rule that does not depend on the node.
func rule(s string) func(*graph.Node) string { return func(*graph.Node) string { return s } }

// cut is the groups of letters along which work may be cut, where they do not depend on the node.
func cut(groups ...string) func(*graph.Node) []string {
	return func(*graph.Node) []string { return groups }
}

// gradType is the type in which the gradient of v is made: that from which v was cast, so that the graph does not round the gradient
// of a float32 parameter to bfloat16 where that computes with it.
func gradType(v *graph.Value) dtype.DType {
	if v.Node.Op == castOp {
		return v.Node.In[0].DType
	}
	return v.DType
}

// Eval runs g's reference in float64. feed holds every parameter and input.
func Eval(g *graph.Graph, feed map[*graph.Value]graph.Array) (map[*graph.Value]graph.Array, error) {
	vals := map[*graph.Value]graph.Array{}
	for _, n := range g.Nodes {
		if n.Op == graph.ParamOp || n.Op == graph.InputOp {
			a, ok := feed[n.Results[0]]
			if !ok {
				return nil, fmt.Errorf("no value for %s", n)
			}
			vals[n.Results[0]] = a
			continue
		}
		in := make([]graph.Array, len(n.In))
		for i, v := range n.In {
			in[i] = vals[v]
		}
		for i, a := range n.Op.Eval(n, in) {
			vals[n.Results[i]] = a
		}
	}
	return vals, nil
}

// rows views a as rows of its last dim.
func rows(a graph.Array) (numRows, width int) {
	width = a.Shape[len(a.Shape)-1]
	if width == 0 {
		return 0, 0
	}
	return len(a.Data) / width, width
}
