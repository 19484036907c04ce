package op

import (
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// Float8CastAttr says what is made float8, and how.
type Float8CastAttr struct {
	To     dtype.DType
	Per    Scaling
	Power2 bool // scales are powers of 2
	Copies Copies
	Again  bool // for each microbatch: nobody keeps the result
}

// Copies is how the float8 numbers of a cast lie.
type Copies uint8

// The copies that a cast makes.
const (
	Straight Copies = iota // as what was cast
	Turned                 // with the last dim first: what were columns are rows
	Both                   // straight as the first result, turned as the third
)

func (c Copies) String() string { return [...]string{"straight", "turned", "both"}[c] }

// The gradient passes as if nothing were rounded; it comes in the type of the value that was cast.
var float8CastOp = &graph.Op{
	Name: "float8_cast",
	Cut:  amaxOp.Cut,
	Rule: func(n *graph.Node) string {
		a, l := n.Attr.(Float8CastAttr), letters[:len(n.In[0].Shape)]
		scales := a.Per.Of(l)
		out := []string{l, turned(l), l}[a.Copies] + "," + scales
		if a.Copies == Both {
			out += "," + turned(l)
		}
		return l + "," + scales + "->" + out
	},
	DTypes: func(n *graph.Node) []dtype.DType {
		to := n.Attr.(Float8CastAttr).To
		return []dtype.DType{to, dtype.Float32, to}
	},
	VJP: func(_ *graph.Graph, _ *graph.Node, d []*graph.Value) []*graph.Value {
		return []*graph.Value{d[0], nil}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		a := n.Attr.(Float8CastAttr)
		q, inverse := graph.NewArray(in[0].Shape...), graph.NewArray(in[1].Shape...)
		values, bits := a.To.Float8Table(), make([]byte, 1)
		_, width := rows(in[0])
		for i, x := range in[0].Data {
			at := a.Per.At(i, width)
			scale := dtype.Float8Scale(a.To, float32(in[1].Data[at]), a.Power2)
			a.To.NarrowFloat8(bits, []float32{float32(x) * scale})
			q.Data[i] = float64(values[bits[0]])
			inverse.Data[at] = float64(1 / scale)
		}
		switch a.Copies {
		case Turned:
			return []graph.Array{turn(q), inverse}
		case Both:
			return []graph.Array{q, inverse, turn(q)}
		}
		return []graph.Array{q, inverse}
	},
}

// Float8Cast is x·scale in the float8 type a.To, and 1/scale for each of x's tensors, rows or columns, float32: the scale that
// makes the largest magnitude there, amax, the type's largest number (dtype.Float8Scale).
func Float8Cast(g *graph.Graph, x, amax *graph.Value, a Float8CastAttr) (q, inverse *graph.Value) {
	r := g.Add(float8CastOp, a, x, amax)
	return r[0], r[1]
}
