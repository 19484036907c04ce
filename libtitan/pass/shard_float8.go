package pass

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// largest is the layout, and where it has parts the joining, of a largest magnitude r of v. A weight's is that of the whole
// weight, whatever cuts it: the scales of weights do not depend on the mesh. Of an activation tp's ranks have one, since
// they exchange what it scales; data and context parallel ranks have each its own, which nobody but them reads, and which
// Replicated stands for.
func (w *sharder) largest(v, r *graph.Value, l placement.Layout) *graph.Value {
	over := l.Partial
	if paramOf(v) == nil {
		over &= placement.TP
	}
	if r.Layout = l.Sum(over); over == 0 {
		return r
	}
	return w.make(op.AllReduce, op.MoveAttr{Axes: over, Dim: -1, From: -1, Max: true}, r, l.Sum(0))
}

// perTensor reports whether n takes or uses one scale of a whole tensor.
func perTensor(n *graph.Node) bool {
	per, ok := scaling(n)
	return ok && per == op.PerTensor
}

// byRow reports whether n takes or uses a scale of each row or column.
func byRow(n *graph.Node) bool {
	per, ok := scaling(n)
	return ok && per != op.PerTensor
}

// scaling is how n, which makes something float8 or finds the scale for it, scales; not ok: it does neither.
func scaling(n *graph.Node) (per op.Scaling, ok bool) {
	switch a := n.Attr.(type) {
	case op.AmaxAttr:
		return a.Per, true
	case op.Float8CastAttr:
		return a.Per, true
	}
	return 0, false
}

// inPlace reports whether n, of a stored parameter, is done where that is stored: what is cast, or made float8 with one
// scale, is rounded before it is gathered, to half the bytes or a quarter.
func inPlace(n *graph.Node) bool { return n.Op.Name == "cast" || perTensor(n) }

// placeOf is the layout of result i of n, done in place on v.
func placeOf(i int, v *graph.Value, n *graph.Node) placement.Layout {
	switch {
	case n.Op.Name == "amax":
		return placement.Layout{Partial: v.Layout.Sharded()}
	case i == 1: // the scale
		return placement.Replicated(0)
	}
	return v.Layout
}
