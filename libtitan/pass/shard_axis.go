package pass

import (
	"slices"
	"strings"

	"titan/libtitan/graph"
	"titan/libtitan/placement"
)

// axis decides by which letter n is cut along one axis ("" is none), and moves the inputs there.
func (w *sharder) axis(n *graph.Node, in []*graph.Value, axis placement.Axes) ([]*graph.Value, string) {
	terms := inputTerms(n)
	group := w.choose(n, in, terms, axis)
	if group == "" && n.Op.Name == "add" && w.allPartial(in, axis) {
		return in, "+" // partial sums add up to a partial sum
	}
	out := make([]*graph.Value, len(in))
	for i, v := range in {
		want := v.Layout
		if want.Partial.Has(axis) {
			want = want.Sum(want.Partial &^ axis)
		}
		have, need := v.Layout.DimOf(axis), dimIn(terms[i], group)
		if w.goesRound(n, terms[i], axis) {
			need = 1
		}
		if have != need {
			if have >= 0 {
				want = w.uncut(n, want, have, axis)
			}
			if need >= 0 {
				want = want.Cut(need, axis)
			}
		}
		out[i] = w.move(v, want)
	}
	return out, group
}

func (w *sharder) allPartial(in []*graph.Value, axis placement.Axes) bool {
	for _, v := range in {
		if !v.Layout.Partial.Has(axis) {
			return false
		}
	}
	return true
}

func (w *sharder) uncut(n *graph.Node, l placement.Layout, dim int, axis placement.Axes) placement.Layout {
	cuts := l.Dims[dim]
	if cuts[len(cuts)-1] != axis {
		w.fail(n, "dim %d of %v would have to be gathered over %v before what cuts it further", dim, l, axis)
	}
	return l.Uncut(dim)
}

// choose is the group of letters by which n is cut along axis, "" for none: a parameter's, a parameter's gradient's, the
// one that the inputs are cut by, or of several the one that moves the fewest bytes.
func (w *sharder) choose(n *graph.Node, in []*graph.Value, terms []string, axis placement.Axes) string {
	groups := n.Op.Cut(n)
	if w.WholeLogits && axis == placement.TP && strings.HasPrefix(n.Op.Name, "cross_entropy") {
		return ""
	}
	var found []string
	for i, v := range in {
		g := groupAlong(groups, terms[i], v.Layout, axis)
		if g != "" && paramOf(v) != nil {
			return g
		}
		if g != "" && !slices.Contains(found, g) {
			found = append(found, g)
		}
	}
	for i, v := range n.Results {
		if name, ok := w.grads[v]; ok {
			_, used := w.Param(name, v.Shape)
			if g := groupAlong(groups, resultTerm(n, i), used, axis); g != "" {
				return g
			}
		}
	}
	if n.Op.Name == "rope_table" {
		return w.tableCut(axis)
	}
	if len(found) < 2 {
		return strings.Join(found, "")
	}
	return w.cheapest(n, in, terms, axis, found)
}

// cheapest is the one of groups that moves the fewest bytes of inputs. A tie is an error.
func (w *sharder) cheapest(n *graph.Node, in []*graph.Value, terms []string, axis placement.Axes, groups []string) string {
	best, bytes, tie := "", -1, false
	for _, g := range groups {
		cost := 0
		for i, v := range in {
			if d := v.Layout.DimOf(axis); d >= 0 && d != dimIn(terms[i], g) || v.Layout.Partial.Has(axis) {
				cost += v.Bytes()
			}
		}
		tie = cost == bytes || tie && cost > bytes
		if bytes < 0 || cost < bytes {
			best, bytes = g, cost
		}
	}
	if tie {
		var layouts []string
		for _, v := range in {
			layouts = append(layouts, v.Layout.String())
		}
		w.fail(n, "its inputs %s do not say by which of %s it is cut along %v", strings.Join(layouts, ", "), strings.Join(groups, ", "), axis)
	}
	return best
}

// tableCut: the rotary table is cut as the positions of the hidden state are, but for tp, over which the heads are.
func (w *sharder) tableCut(axis placement.Axes) string {
	if axis == placement.CP {
		return "s"
	}
	return ""
}

// layout is where result i of n lies after its work was cut.
func (w *sharder) layout(n *graph.Node, i int, cut map[placement.Axes]string) placement.Layout {
	term := resultTerm(n, i)
	l := placement.Replicated(len(term))
	for _, axis := range w.Mesh.Live().Each() {
		switch group := cut[axis]; {
		case group == "":
		case w.goesRound(n, term, axis):
			l = l.Cut(1, axis)
		case dimIn(term, group) >= 0:
			l = l.Cut(dimIn(term, group), axis)
		default:
			l = l.Sum(l.Partial | axis)
		}
	}
	if name, ok := w.grads[n.Results[i]]; ok {
		if _, used := w.Param(name, n.Results[i].Shape); used.Sharded() == l.Sharded() {
			l.Dims = used.Dims // by the same axes, in the order in which they cut the parameter
		}
	}
	return l
}

func inputTerms(n *graph.Node) []string {
	left, _, _ := strings.Cut(n.Op.Rule(n), "->")
	if left == "" {
		return nil
	}
	return strings.Split(left, ",")
}

func resultTerm(n *graph.Node, i int) string {
	_, right, _ := strings.Cut(n.Op.Rule(n), "->")
	return strings.Split(right, ",")[i]
}

// dimIn is the dim of a term that a group of letters cuts, -1 if none.
func dimIn(term, group string) int { return strings.IndexAny(term, group) }

// groupAlong is the group of letters by which a value that lies as l is cut along axis; "" where it is not, or by a letter
// that the work may not be cut by.
func groupAlong(groups []string, term string, l placement.Layout, axis placement.Axes) string {
	d := l.DimOf(axis)
	i := slices.IndexFunc(groups, func(g string) bool { return d >= 0 && strings.IndexByte(g, term[d]) >= 0 })
	if i < 0 {
		return ""
	}
	return groups[i]
}
