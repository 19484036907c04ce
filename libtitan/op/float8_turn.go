package op

import "titan/libtitan/graph"

// turned is the dims of a tensor of dims term with the last put first.
func turned(term string) string {
	last := len(term) - 1
	return term[last:] + term[:last]
}

// TurnAttr says when.
type TurnAttr struct {
	Again bool // for each microbatch: nobody keeps the result
}

var float8TurnOp = &graph.Op{
	Name: "float8_turn",
	Rule: func(n *graph.Node) string {
		l := letters[:len(n.In[0].Shape)]
		return l + "->" + turned(l)
	},
	Eval: func(_ *graph.Node, in []graph.Array) []graph.Array { return []graph.Array{turn(in[0])} },
}

// Float8Turn is q with its last dim first: what were columns are rows.
func Float8Turn(g *graph.Graph, a TurnAttr, q *graph.Value) *graph.Value {
	return g.Add(float8TurnOp, a, q)[0]
}

// turn puts the last dim first.
func turn(a graph.Array) graph.Array {
	last := len(a.Shape) - 1
	n, width := rows(a)
	out := graph.NewArray(append([]int{width}, a.Shape[:last]...)...)
	for i, x := range a.Data {
		out.Data[i%width*n+i/width] = x
	}
	return out
}

// straight is turn undone.
func straight(a graph.Array) graph.Array {
	width := a.Shape[0]
	out := graph.NewArray(append(append([]int(nil), a.Shape[1:]...), width)...)
	for i := range out.Data {
		out.Data[i] = a.Data[i%width*(len(a.Data)/width)+i/width]
	}
	return out
}
