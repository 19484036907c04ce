package parallel

import (
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
	var out []Held
	for _, i := range j.stageParams(at.PP) {
		h := Held{Index: i, Param: j.Params[i], First: true}
		shape := make([]int, len(h.Param.Shape))
		for d, n := range h.Param.Shape {
			shape[d] = int(n)
		}
		stored, _ := j.spread.Param(h.Param.FQN, shape)
		for _, r := range j.Mesh.Local(shape, stored, at.Coord) {
			h.Offsets, h.Sizes = append(h.Offsets, int64(r.Start)), append(h.Sizes, int64(r.Len))
		}
		copies := (1<<placement.NumAxes - 1) &^ stored.Sharded()
		h.First = j.Mesh.Index(at.Coord, copies) == 0 && !j.heldBefore(i, at.PP)
		out = append(out, h)
	}
	return out
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
