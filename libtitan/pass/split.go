package pass

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// split is how an op whose result is no plain sum over a letter is done where that letter is cut.
type split struct {
	letter string
	apply  func(w *sharder, n *graph.Node, in []*graph.Value, axes placement.Axes)
}

// splits, by op.
var splits = map[string]*split{"cross_entropy": {"v", vocabParallel}}

// cutBy is the axes along which a letter is cut.
func cutBy(cut map[placement.Axes]string, letter string) (a placement.Axes) {
	for axis, group := range cut {
		if group == letter {
			a |= axis
		}
	}
	return a
}

// vocabParallel is the cross-entropy over a cut vocabulary: three all-reduces of one number a row.
func vocabParallel(w *sharder, n *graph.Node, in []*graph.Value, axes placement.Axes) {
	logits, labels := in[0], in[1]
	rows := placement.Layout{Dims: logits.Layout.Dims[:2]}
	reduce := func(v *graph.Value, top bool) *graph.Value {
		v.Layout = rows.Sum(axes)
		r := op.AllReduce.Apply(w.g, op.MoveAttr{Axes: axes, Dim: -1, From: -1, Max: top}, v)
		r.Layout = rows
		return r
	}
	top := reduce(op.RowMax(w.g, logits), true)
	sums, picked := op.RowSums(w.g, logits, labels, top)
	sums, picked = reduce(sums, false), reduce(picked, false)
	loss, lse := op.RowLoss(w.g, top, sums, picked, labels)
	lse.Layout = rows
	loss.Layout = placement.Layout{Partial: rows.Sharded()}
	w.to[n.Results[0]], w.to[n.Results[1]] = loss, lse
}
