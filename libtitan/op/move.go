package op

import (
	"fmt"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/placement"
)

// Move is a change of layout. On logical values it is the identity. One node may move several values at once.
type Move string

// The moves. The last three send nothing.
const (
	AllGather     Move = "all_gather"     // S(dim) -> R
	AllReduce     Move = "all_reduce"     // P -> R
	ReduceScatter Move = "reduce_scatter" // P -> S(dim)
	AllToAll      Move = "all_to_all"     // S(from) -> S(dim)
	Slice         Move = "slice"          // R -> S(dim)
	Mask          Move = "mask"           // R -> P: the first rank keeps the value, the others zeros
)

// MoveAttr says along which axes a value moves.
type MoveAttr struct {
	Axes      placement.Axes
	Dim, From int  // -1 where the move has none
	Max       bool // reduce by maximum instead of sum
	Again     bool // do it for each microbatch: nobody keeps the result
}

func (a MoveAttr) String() string {
	s := fmt.Sprintf("{%v", a.Axes)
	if a.From >= 0 {
		s += fmt.Sprintf(" from %d", a.From)
	}
	if a.Dim >= 0 {
		s += fmt.Sprintf(" dim %d", a.Dim)
	}
	if a.Max {
		s += " max"
	}
	return s + "}"
}

// Again reports whether n is done for each microbatch, though what it reads may be there once a step.
func Again(n *graph.Node) bool {
	switch a := n.Attr.(type) {
	case MoveAttr:
		return a.Again
	case TurnAttr:
		return a.Again
	case Float8CastAttr:
		return a.Again
	}
	return false
}

// moveOps are made when a package starts and never change.
var moveOps = func() map[Move]*graph.Op {
	out := map[Move]*graph.Op{}
	for _, m := range []Move{AllGather, AllReduce, ReduceScatter, AllToAll, Slice, Mask} {
		out[m] = &graph.Op{
			Name: string(m),
			Rule: moveRule,
			DTypes: func(n *graph.Node) (out []dtype.DType) {
				for _, v := range n.In {
					out = append(out, v.DType)
				}
				return out
			},
			Eval: func(n *graph.Node, in []graph.Array) []graph.Array { return in },
		}
	}
	return out
}()

// moveRule gives each size of the values' dims a letter: "abc,a->abc,a". Moved values keep their shapes, so more need
// not be told apart.
func moveRule(n *graph.Node) string {
	letter := map[int]byte{}
	var terms []string
	for _, v := range n.In {
		var term []byte
		for _, size := range v.Shape {
			if _, ok := letter[size]; !ok {
				letter[size] = byte('a' + len(letter))
			}
			term = append(term, letter[size])
		}
		terms = append(terms, string(term))
	}
	all := strings.Join(terms, ",")
	return all + "->" + all
}

// Apply appends a move of v and returns the result, whose layout the caller sets.
func (m Move) Apply(g *graph.Graph, a MoveAttr, v *graph.Value) *graph.Value {
	return m.Together(g, a, v)[0]
}

// Together is Apply of values in a single collective; what is reduced has one element type.
func (m Move) Together(g *graph.Graph, a MoveAttr, v ...*graph.Value) []*graph.Value {
	return g.Add(moveOps[m], a, v...)
}
