package pass

import (
	"fmt"

	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/placement"
)

// store moves a gradient to where its parameter is stored: one reduce-scatter where it can.
func (w *sharder) store(v *graph.Value, stored placement.Layout) *graph.Value {
	for d, cuts := range stored.Dims {
		for k, a := range cuts {
			if k < len(v.Layout.Dims[d]) {
				continue
			}
			if v.Layout.Partial.Has(a) {
				v = w.make(op.ReduceScatter, op.MoveAttr{Axes: a, Dim: d, From: -1}, v, v.Layout.Sum(v.Layout.Partial&^a).Cut(d, a))
			} else {
				v = w.move(v, v.Layout.Sum(v.Layout.Partial&^a).Cut(d, a))
			}
		}
	}
	return w.move(v, stored)
}

// move gives v in another layout, by one move an axis. Values that were moved once are not moved again.
func (w *sharder) move(v *graph.Value, to placement.Layout) *graph.Value {
	for !v.Layout.Equal(to) {
		next := w.oneMove(v, to)
		if next == nil {
			panic(&graph.Error{FQN: v.Node.FQN, Op: v.Node.Op.Name, What: fmt.Sprintf("no move from %v to %v", v.Layout, to)})
		}
		v = next
	}
	return v
}

// oneMove brings v one axis nearer to a layout.
func (w *sharder) oneMove(v *graph.Value, to placement.Layout) *graph.Value {
	l := v.Layout
	for _, axis := range (l.Partial &^ to.Partial).Each() {
		if d := to.DimOf(axis); d >= 0 && len(to.Dims[d]) > len(l.Dims[d]) && to.Dims[d][len(l.Dims[d])] == axis {
			return w.make(op.ReduceScatter, op.MoveAttr{Axes: axis, Dim: d, From: -1}, v, l.Sum(l.Partial&^axis).Cut(d, axis))
		}
	}
	if lost := l.Partial &^ to.Partial; lost != 0 {
		return w.make(op.AllReduce, op.MoveAttr{Axes: lost, Dim: -1, From: -1}, v, l.Sum(l.Partial&^lost))
	}
	for d, cuts := range l.Dims {
		k := len(cuts)
		if k > len(to.Dims[d]) || k > 0 && cuts[k-1] != to.Dims[d][k-1] {
			axis := cuts[k-1]
			if t := to.DimOf(axis); t >= 0 && t != d && len(to.Dims[t]) == len(l.Dims[t])+1 {
				return w.make(op.AllToAll, op.MoveAttr{Axes: axis, Dim: t, From: d}, v, l.Uncut(d).Cut(t, axis))
			}
			return w.make(op.AllGather, op.MoveAttr{Axes: axis, Dim: -1, From: d}, v, l.Uncut(d))
		}
	}
	for d, cuts := range to.Dims {
		if k := len(l.Dims[d]); k < len(cuts) {
			return w.make(op.Slice, op.MoveAttr{Axes: cuts[k], Dim: d, From: -1}, v, l.Cut(d, cuts[k]))
		}
	}
	if more := to.Partial &^ l.Partial; more != 0 {
		return w.make(op.Mask, op.MoveAttr{Axes: more, Dim: -1, From: -1}, v, l.Sum(l.Partial|more))
	}
	return nil
}

func (w *sharder) make(m op.Move, a op.MoveAttr, v *graph.Value, to placement.Layout) *graph.Value {
	return w.once(fmt.Sprintf("%d %v", v.ID, to), m, a, v, to)
}

func (w *sharder) once(key string, m op.Move, a op.MoveAttr, v *graph.Value, to placement.Layout) *graph.Value {
	if have := w.moved[key]; have != nil {
		return have
	}
	r := m.Apply(w.g, a, v)
	r.Layout = to
	w.moved[key] = r
	return r
}
