// Package placement says how tensors lie on a mesh: which dims are cut over which axes, what is a partial sum,
// and what a rank holds. It is arithmetic alone.
//
// A [Layout] lists, for each dim, the axes that cut it, in order: each cuts what the one before it left, by
// torch.chunk's rule, so that a rank's part of a dim is one range. An axis that is in no list holds copies, or, in
// Partial, summands.
package placement

import (
	"fmt"
	"math/bits"
	"strings"

	"titan/libtitan/mesh"
)

// Axes is a set of mesh axes that act as one: their ranks in row-major order, the slowest axis first.
type Axes uint8

// The axes of a mesh within a pipeline stage, from the slowest to the fastest.
const (
	DPReplicate Axes = 1 << iota
	DPShard
	CP
	TP
	NumAxes = 4
)

var names = [NumAxes]string{mesh.DPReplicate, mesh.DPShard, mesh.CP, mesh.TP}

func (a Axes) String() string {
	var s []string
	for i, n := range names {
		if a>>i&1 > 0 {
			s = append(s, n)
		}
	}
	return strings.Join(s, "*")
}

// Has reports whether every axis of b is in a.
func (a Axes) Has(b Axes) bool { return a&b == b }

// Each lists the single axes of a, the slowest first.
func (a Axes) Each() []Axes {
	var out []Axes
	for ; a != 0; a &= a - 1 {
		out = append(out, a&-a)
	}
	return out
}

// Mesh is the degree of each axis.
type Mesh [NumAxes]int

// Size is the number of ranks along a.
func (m Mesh) Size(a Axes) int {
	n := 1
	for _, axis := range a.Each() {
		n *= m[axis.index()]
	}
	return n
}

// Live is the axes of more than one rank.
func (m Mesh) Live() Axes {
	var a Axes
	for i, n := range m {
		if n > 1 {
			a |= 1 << i
		}
	}
	return a
}

// World is the number of ranks of the mesh.
func (m Mesh) World() int { return m.Size(1<<NumAxes - 1) }

// Coord is a rank's place along each axis.
type Coord [NumAxes]int

// Coord is the place of a rank, tp running fastest.
func (m Mesh) Coord(rank int) (c Coord) {
	for i := NumAxes - 1; i >= 0; i-- {
		c[i], rank = rank%m[i], rank/m[i]
	}
	return c
}

// Rank is the rank at c.
func (m Mesh) Rank(c Coord) int {
	rank := 0
	for i, n := range m {
		rank = rank*n + c[i]
	}
	return rank
}

// Index is c's place along the axes a taken as one.
func (m Mesh) Index(c Coord, a Axes) int {
	index := 0
	for _, axis := range a.Each() {
		i := axis.index()
		index = index*m[i] + c[i]
	}
	return index
}

// With is c moved to place index along the axes a taken as one.
func (m Mesh) With(c Coord, a Axes, index int) Coord {
	axes := a.Each()
	for k := len(axes) - 1; k >= 0; k-- {
		i := axes[k].index()
		c[i], index = index%m[i], index/m[i]
	}
	return c
}

// Group is the ranks that differ from c along a alone, in order.
func (m Mesh) Group(c Coord, a Axes) []int {
	out := make([]int, m.Size(a))
	for i := range out {
		out[i] = m.Rank(m.With(c, a, i))
	}
	return out
}

func (a Axes) index() int { return bits.TrailingZeros8(uint8(a)) }

// Layout is how a tensor lies on a mesh. The zero Layout of enough dims is a copy on every rank.
type Layout struct {
	Dims    [][]Axes // by dim: what cuts it, the first cut first
	Partial Axes     // along these every rank holds a summand
}

// Replicated is the layout of a tensor of that many dims that every rank holds whole.
func Replicated(dims int) Layout { return Layout{Dims: make([][]Axes, dims)} }

// Cut is l with dim cut by a after its other cuts.
func (l Layout) Cut(dim int, a Axes) Layout {
	out := l.clone()
	out.Dims[dim] = append(out.Dims[dim], a)
	return out
}

// Uncut is l without the last cut of dim.
func (l Layout) Uncut(dim int) Layout {
	out := l.clone()
	out.Dims[dim] = out.Dims[dim][:len(out.Dims[dim])-1]
	return out
}

// Sum is l with the axes of Partial set to a.
func (l Layout) Sum(a Axes) Layout {
	out := l.clone()
	out.Partial = a
	return out
}

func (l Layout) clone() Layout {
	out := Layout{make([][]Axes, len(l.Dims)), l.Partial}
	for d, cuts := range l.Dims {
		out.Dims[d] = append([]Axes(nil), cuts...)
	}
	return out
}

// Sharded is all the axes that cut a dim of l.
func (l Layout) Sharded() Axes {
	var a Axes
	for _, cuts := range l.Dims {
		for _, c := range cuts {
			a |= c
		}
	}
	return a
}

// DimOf is the dim that axis cuts, alone or in a set; -1 if it cuts none.
func (l Layout) DimOf(axis Axes) int {
	for d, cuts := range l.Dims {
		for _, c := range cuts {
			if c&axis != 0 {
				return d
			}
		}
	}
	return -1
}

// Equal reports whether l and o are the same.
func (l Layout) Equal(o Layout) bool { return l.String() == o.String() }

func (l Layout) String() string {
	var s []string
	for d, cuts := range l.Dims {
		for _, c := range cuts {
			s = append(s, fmt.Sprintf("S(%d,%v)", d, c))
		}
	}
	if l.Partial != 0 {
		s = append(s, fmt.Sprintf("P(%v)", l.Partial))
	}
	if s == nil {
		return "R"
	}
	return strings.Join(s, " ")
}

// Range is part of a dim: Len elements from Start on.
type Range struct{ Start, Len int }

// Chunk is piece i of k of n elements by torch.chunk's rule: ceil(n/k) each until they run out.
func Chunk(n, k, i int) Range {
	size := (n + k - 1) / k
	start := min(i*size, n)
	return Range{start, min(start+size, n) - start}
}

// Local is what the rank at c holds of each dim of a tensor of that shape.
func (m Mesh) Local(shape []int, l Layout, c Coord) []Range {
	out := make([]Range, len(shape))
	for d, n := range shape {
		r := Range{0, n}
		for _, a := range l.cuts(d) {
			piece := Chunk(r.Len, m.Size(a), m.Index(c, a))
			r = Range{r.Start + piece.Start, piece.Len}
		}
		out[d] = r
	}
	return out
}

// cuts is what cuts a dim; a layout without dims cuts none.
func (l Layout) cuts(dim int) []Axes {
	if dim < len(l.Dims) {
		return l.Dims[dim]
	}
	return nil
}

// LocalShape is the lengths of Local.
func (m Mesh) LocalShape(shape []int, l Layout, c Coord) []int {
	out := make([]int, len(shape))
	for d, r := range m.Local(shape, l, c) {
		out[d] = r.Len
	}
	return out
}
