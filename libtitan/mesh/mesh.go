// Package mesh arranges ranks along named axes. A [Mesh] of degrees pp 2, dp_shard 2, tp 2 has eight ranks; a
// rank's coordinate is its index along every axis, and a [Mesh.Group] is the ranks that differ along some axes
// alone: those that a collective over these axes joins. Start with [New].
package mesh

import (
	"fmt"
	"slices"
	"strings"
)

// The axes, with torchtitan's names.
const (
	PP          = "pp"
	DPReplicate = "dp_replicate"
	DPShard     = "dp_shard"
	CP          = "cp"
	TP          = "tp"
	EP          = "ep" // reuses the ranks of dp_shard, cp and tp: no axis of the dense mesh
)

// Order is the order of the axes in torchtitan's meshes, slowest first: ranks next to each other differ in tp.
func Order() []string { return []string{PP, DPReplicate, DPShard, CP, TP} }

// Axis is one axis and the number of ranks along it.
type Axis struct {
	Name   string
	Degree int
}

// Mesh is the arrangement. It does not change once made.
type Mesh struct {
	axes    []Axis
	strides []int // ranks between neighbours along the axis
	size    int
}

// maxRanks bounds a mesh; the largest machines have a tenth of it.
const maxRanks = 1 << 20

// New arranges ranks in row-major order of axes, slowest first. Names must differ and degrees be at least 1.
func New(axes ...Axis) (*Mesh, error) {
	m := &Mesh{axes: slices.Clone(axes), strides: make([]int, len(axes)), size: 1}
	for i := len(axes) - 1; i >= 0; i-- {
		a := axes[i]
		if a.Degree < 1 {
			return nil, fmt.Errorf("mesh: axis %s has degree %d: it must be at least 1", a.Name, a.Degree)
		}
		if m.index(a.Name) != i {
			return nil, fmt.Errorf("mesh: axis %s is given twice", a.Name)
		}
		m.strides[i] = m.size
		if m.size *= a.Degree; m.size > maxRanks || a.Degree > maxRanks {
			return nil, fmt.Errorf("mesh: more than %d ranks", maxRanks)
		}
	}
	return m, nil
}

// Size is the number of ranks.
func (m *Mesh) Size() int { return m.size }

// Axes lists the axes, slowest first.
func (m *Mesh) Axes() []Axis { return slices.Clone(m.axes) }

// Degree is the number of ranks along axis, 1 for an axis that m does not have.
func (m *Mesh) Degree(axis string) int {
	if i := m.index(axis); i >= 0 {
		return m.axes[i].Degree
	}
	return 1
}

// Coord is rank's index along axis, 0 for an axis that m does not have.
func (m *Mesh) Coord(rank int, axis string) int {
	if i := m.index(axis); i >= 0 {
		return rank / m.strides[i] % m.axes[i].Degree
	}
	return 0
}

// Coords is rank's index along every axis, in the order of Axes.
func (m *Mesh) Coords(rank int) []int {
	coords := make([]int, len(m.axes))
	for i, a := range m.axes {
		coords[i] = rank / m.strides[i] % a.Degree
	}
	return coords
}

// Rank is the rank at coords, which are in the order of Axes and within the degrees.
func (m *Mesh) Rank(coords ...int) int {
	rank := 0
	for i, c := range coords {
		rank += c * m.strides[i]
	}
	return rank
}

// Group lists, in ascending order of their coordinates, the ranks that share rank's coordinate along every axis
// but axes. The rank's own place in it is its index along them, the first of axes slowest. Axes that m does not
// have count as degree 1.
func (m *Mesh) Group(rank int, axes ...string) []int {
	group := []int{rank}
	for _, name := range axes {
		i := m.index(name)
		if i < 0 {
			continue
		}
		next := make([]int, 0, len(group)*m.axes[i].Degree)
		for _, r := range group {
			base := r - m.Coord(r, name)*m.strides[i]
			for c := range m.axes[i].Degree {
				next = append(next, base+c*m.strides[i])
			}
		}
		group = next
	}
	return group
}

// Index is rank's place in its Group along axes.
func (m *Mesh) Index(rank int, axes ...string) int {
	index := 0
	for _, name := range axes {
		index = index*m.Degree(name) + m.Coord(rank, name)
	}
	return index
}

// Groups lists every Group along axes once, ordered by least rank.
func (m *Mesh) Groups(axes ...string) [][]int {
	var groups [][]int
	for rank := range m.size {
		if g := m.Group(rank, axes...); slices.Min(g) == rank {
			groups = append(groups, g)
		}
	}
	return groups
}

// String is the axes of degree above 1: "pp 2 x tp 2", "1 rank" where there is none.
func (m *Mesh) String() string {
	var parts []string
	for _, a := range m.axes {
		if a.Degree > 1 {
			parts = append(parts, fmt.Sprintf("%s %d", a.Name, a.Degree))
		}
	}
	if parts == nil {
		return "1 rank"
	}
	return strings.Join(parts, " x ")
}

func (m *Mesh) index(axis string) int {
	return slices.IndexFunc(m.axes, func(a Axis) bool { return a.Name == axis })
}
