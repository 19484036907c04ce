package parallel

import (
	"cmp"
	"slices"

	"titan/libtitan/nn"
	"titan/libtitan/placement"
)

// Held is a rank's part of a parameter.
type Held struct {
	Index          int // in Job.Params
	Param          *nn.Param
	Offsets, Sizes []int64
	First          bool // of the ranks that hold this part: the one that saves and counts it
}

// NumElements is the number of values that the rank holds.
func (h Held) NumElements() int64 {
	n := int64(1)
	for _, s := range h.Sizes {
		n *= s
	}
	return n
}

// Held lists what a rank holds. Under pp a tied head's weight is held by the first and the last stage.
func (j *Job) Held(rank int) []Held {
	at := j.Where(rank)
	params := j.stageParams(at.PP)
	savers := j.savers(params, at.PP)
	var out []Held
	for _, i := range params {
		h := Held{Index: i, Param: j.Params[i]}
		shape, stored := j.stored(i)
		for _, r := range j.Mesh.Local(shape, stored, at.Coord) {
			h.Offsets, h.Sizes = append(h.Offsets, int64(r.Start)), append(h.Sizes, int64(r.Len))
		}
		saver, saved := savers[i]
		h.First = saved && j.Mesh.Index(at.Coord, copied(stored)) == saver
		out = append(out, h)
	}
	return out
}

// stored is the whole shape of parameter i, and how it lies.
func (j *Job) stored(i int) ([]int, placement.Layout) {
	p := j.Params[i]
	shape := make([]int, len(p.Shape))
	for d, n := range p.Shape {
		shape[d] = int(n)
	}
	l, _ := j.spread.Param(p.FQN, shape)
	return shape, l
}

// copied is the axes along which all ranks hold the same part.
func copied(l placement.Layout) placement.Axes { return (1<<placement.NumAxes - 1) &^ l.Sharded() }

// savers picks the copy of each of a stage's parameters that saves it, so that all save about as much: the largest
// parameters first, each by the copy that has the least. What a stage before has too, that one saves.
func (j *Job) savers(params []int, pp int) map[int]int {
	order := slices.Clone(params)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(j.Params[b].NumElements(), j.Params[a].NumElements()) })
	picked, loads := map[int]int{}, map[placement.Axes][]int64{}
	for _, i := range order {
		if j.heldBefore(i, pp) {
			continue
		}
		_, l := j.stored(i)
		load := loads[copied(l)]
		if load == nil {
			load = make([]int64, j.Mesh.Size(copied(l)))
			loads[copied(l)] = load
		}
		least := slices.Index(load, slices.Min(load))
		picked[i], load[least] = least, load[least]+j.Params[i].NumElements()
	}
	return picked
}

// heldBefore reports whether a pp rank before pp holds parameter i.
func (j *Job) heldBefore(i, pp int) bool {
	for before := range pp {
		for _, k := range j.stageParams(before) {
			if k == i {
				return true
			}
		}
	}
	return false
}

// stageParams lists the parameters of a pp rank, as indices into Params.
func (j *Job) stageParams(pp int) []int {
	index := map[*nn.Param]int{}
	for i, p := range j.Params {
		index[p] = i
	}
	var out []int
	seen := map[int]bool{}
	for i, fqns := range j.Stages {
		if j.StageRank[i] != pp {
			continue
		}
		for _, p := range j.Model.Only(fqns).Params() {
			if !seen[index[p]] {
				seen[index[p]] = true
				out = append(out, index[p])
			}
		}
	}
	return out
}
