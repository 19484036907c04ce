package estimate

import (
	"fmt"
	"slices"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// Space is what Search looks through: every legal mesh, with every microbatch, activation checkpointing and schedule.
// What is given is fixed, what is 0 or empty is searched.
type Space struct {
	Job  Job // what all plans share; Search fills in the mesh, the batch and the schedule
	Dims manifest.MeshDims
	// World is the number of ranks, the product of the mesh.
	World        int
	LocalBatch   int // rows of a data-parallel rank in one pass
	GlobalBatch  int // rows of a step
	Microbatches int // of a pass
	AC           []manifest.ActivationCheckpoint
	Schedules    []string

	ReshardAfterForward string // of manifest's mesh section
	MemoryBytes         int64  // a rank's; 0: what the machine has
	Machine             Machine
}

// rejections counts what is not legal by its reason.
type rejections struct {
	list []Rejection
	at   map[string]int // in list
}

func (r *rejections) add(format string, args ...any) {
	why := fmt.Sprintf(format, args...)
	i, known := r.at[why]
	if !known {
		if r.at == nil {
			r.at = map[string]int{}
		}
		i = len(r.list)
		r.at[why] = i
		r.list = append(r.list, Rejection{Why: why})
	}
	r.list[i].Count++
}

// meshes lists the legal meshes, tp first: what a degree alone forbids is one rejection.
func (s *Space) meshes(r *rejections) (legal []manifest.MeshDims) {
	if s.Dims.TP != 0 && s.rejectTP(r, s.Dims.TP) {
		return nil
	}
	if given := s.given(); s.World%given != 0 {
		r.add("mesh.dims: the given degrees make %d, which does not divide mesh.world_size %d", given, s.World)
		return nil
	}
	for _, tp := range degrees(s.World, s.Dims.TP) {
		if s.rejectTP(r, tp) {
			continue
		}
		for _, cp := range degrees(s.World/tp, s.Dims.CP) {
			if s.rejectCP(r, tp, cp) {
				continue
			}
			for _, pp := range degrees(s.World/tp/cp, s.Dims.PP) {
				if s.rejectPP(r, pp) {
					continue
				}
				legal = append(legal, s.dataParallel(r, manifest.MeshDims{TP: tp, CP: cp, PP: pp})...)
			}
		}
	}
	return legal
}

// given is the product of the degrees that are given.
func (s *Space) given() int {
	product := 1
	for _, d := range []int{s.Dims.PP, s.Dims.DPReplicate, s.Dims.DPShard, s.Dims.CP, s.Dims.TP} {
		if product *= max(1, d); product > 1<<20 {
			return product // no world is as large
		}
	}
	return product
}

// dataParallel spreads the ranks that tp, cp and pp leave over replicas and shards.
func (s *Space) dataParallel(r *rejections, d manifest.MeshDims) (legal []manifest.MeshDims) {
	rest := s.World / d.TP / d.CP / d.PP
	for _, d.DPShard = range degrees(rest, s.Dims.DPShard) {
		d.DPReplicate = rest / d.DPShard
		if given := s.Dims.DPReplicate; given != 0 && given != d.DPReplicate {
			if s.Dims.DPShard != 0 {
				r.add("mesh.dims: pp %d * dp_replicate %d * dp_shard %d * cp %d * tp %d is not mesh.world_size %d", d.PP, given, d.DPShard, d.CP, d.TP, s.World)
			}
			continue
		}
		for _, d.EP = range s.expertDegrees(d) {
			if !s.rejectEP(r, d) {
				legal = append(legal, d)
			}
		}
	}
	return legal
}

// degrees are the divisors of n, or given alone where it is one.
func degrees(n, given int) (out []int) {
	if given != 0 {
		if n%given == 0 {
			out = []int{given}
		}
		return out
	}
	var large []int
	for d := 1; d*d <= n; d++ {
		if n%d == 0 {
			out = append(out, d)
			if d*d < n {
				large = append(large, n/d)
			}
		}
	}
	for i := len(large) - 1; i >= 0; i-- {
		out = append(out, large[i])
	}
	return out
}

func (s *Space) rejectTP(r *rejections, tp int) bool {
	for _, heads := range []struct {
		name string
		n    int
	}{{"num_heads", s.Job.Model.NumHeads}, {"num_kv_heads", s.Job.Model.NumKVHeads}} {
		if heads.n%tp != 0 {
			r.add("mesh.dims.tp %d: model.config.%s %d is not divisible by it", tp, heads.name, heads.n)
			return true
		}
	}
	if s.Job.SeqLen%tp != 0 && !s.Job.WholeSequence {
		r.add("mesh.dims.tp %d: training.seq_len %d is not divisible by it (nearest: %s)", tp, s.Job.SeqLen, manifest.NearestMultiples(s.Job.SeqLen, tp))
		return true
	}
	return false
}

func (s *Space) rejectCP(r *rejections, tp, cp int) bool {
	if s.Job.WholeSequence {
		tp = 1
	}
	if cp > 1 && s.Job.SeqLen%(tp*2*cp) != 0 {
		r.add("mesh.dims.cp %d with tp %d: training.seq_len %d is not divisible by tp*2*cp = %d (nearest: %s)", cp, tp, s.Job.SeqLen, tp*2*cp, manifest.NearestMultiples(s.Job.SeqLen, tp*2*cp))
		return true
	}
	return false
}

// rejectPP refuses what no schedule can cut.
func (s *Space) rejectPP(r *rejections, pp int) bool {
	if pp == 1 {
		return false
	}
	var why error
	for _, perRank := range []int{1, 2} {
		_, err := pipeline.Split(pipeline.Cut{NumLayers: s.Job.Model.NumLayers, NumStages: pp * perRank, FirstWeight: 1, LastWeight: 1})
		if err == nil {
			return false
		}
		if why == nil {
			why = err
		}
	}
	r.add("mesh.dims.pp %d: %v", pp, why)
	return true
}

// expertDegrees are those of ep to try: 1, and with experts all that divide the ranks that they reuse.
func (s *Space) expertDegrees(d manifest.MeshDims) []int {
	switch {
	case s.Dims.EP != 0:
		return []int{s.Dims.EP}
	case s.Job.Model.NumExperts == 0:
		return []int{1}
	}
	return degrees(d.DPShard*d.CP*d.TP, 0)
}

func (s *Space) rejectEP(r *rejections, d manifest.MeshDims) bool {
	experts, region := s.Job.Model.NumExperts, d.DPShard*d.CP*d.TP
	switch {
	case d.EP == 1:
		return false
	case region%d.EP != 0:
		r.add("mesh.dims.ep %d: it does not divide dp_shard*cp*tp = %d, whose ranks it reuses", d.EP, region)
	case experts == 0:
		r.add("mesh.dims.ep %d: it needs a model with experts", d.EP)
	case experts%d.EP != 0:
		r.add("mesh.dims.ep %d: model.config.num_experts %d is not divisible by it", d.EP, experts)
	default:
		return false
	}
	return true
}

// batch is how a data-parallel rank's rows go through.
type batch struct{ rows, microbatches, passes int }

// mostRows bounds the rows of a microbatch where no batch is given, mostRounds the microbatches for each pipeline rank.
const mostRows, mostRounds = 16, 4

// batches lists the ways in which a mesh can take the batch.
func (s *Space) batches(r *rejections, d manifest.MeshDims) []batch {
	return slices.DeleteFunc(s.allBatches(r, d), func(b batch) bool { return s.rejectFloat8(r, d, b) })
}

// rejectFloat8 refuses tokens that products in float8 cannot take: they are what the weights' gradients are summed over.
func (s *Space) rejectFloat8(r *rejections, d manifest.MeshDims, b batch) bool {
	tokens := b.rows * s.Job.SeqLen / d.CP
	if s.Job.Float8 == "off" || tokens%manifest.Float8Multiple == 0 {
		return false
	}
	r.add("float8.recipe %s: a microbatch of %d rows * seq_len %d / cp %d = %d tokens is not divisible by %d", s.Job.Float8, b.rows, s.Job.SeqLen, d.CP, tokens, manifest.Float8Multiple)
	return true
}

// allBatches lists those of any type. Where the batch is free, a microbatch has 1, 2, 4 and so on rows, and a pipeline 1,
// 2 or 4 microbatches for each rank.
func (s *Space) allBatches(r *rejections, d manifest.MeshDims) (out []batch) {
	dp := d.DPReplicate * d.DPShard
	if s.LocalBatch == 0 && s.GlobalBatch == 0 {
		return s.freeBatches(d.PP)
	}
	if s.GlobalBatch%(dp*max(1, s.LocalBatch)) != 0 {
		r.add("training.global_batch_size %d: not divisible by %d data-parallel ranks of %d rows or more (nearest: %s)", s.GlobalBatch, dp, max(1, s.LocalBatch), manifest.NearestMultiples(s.GlobalBatch, dp*max(1, s.LocalBatch)))
		return nil
	}
	rows := s.GlobalBatch / dp // of one data-parallel rank in a step
	locals := []int{s.LocalBatch}
	switch {
	case s.LocalBatch != 0:
	case d.PP > 1:
		locals = []int{rows} // one pass has the least bubble
	default:
		locals = degrees(rows, 0)
	}
	for _, local := range locals {
		for _, n := range s.parts(d.PP, local) {
			out = append(out, batch{local / n, n, max(1, rows/local)})
		}
	}
	if out == nil {
		r.add("pipeline.num_microbatches %d: it does not divide training.local_batch_size", s.fixedParts(d.PP))
	}
	return out
}

// freeBatches lists those of a pp where no batch is given.
func (s *Space) freeBatches(pp int) (out []batch) {
	parts := []int{1}
	if n := s.fixedParts(pp); n != 0 {
		parts = []int{n}
	} else if pp > 1 {
		parts = []int{pp, 2 * pp, mostRounds * pp}
	}
	for _, n := range parts {
		for rows := 1; rows <= mostRows; rows *= 2 {
			out = append(out, batch{rows, n, 1})
		}
	}
	return out
}

// parts are the numbers of microbatches to try for a local batch.
func (s *Space) parts(pp, local int) []int {
	n := s.fixedParts(pp)
	switch {
	case n != 0 && local%n != 0:
		return nil
	case n != 0:
		return []int{n}
	case pp == 1:
		return []int{1}
	}
	return degrees(local, 0)
}

// fixedParts is the number of microbatches that is given, by the job or by the machine's software; 0: free.
func (s *Space) fixedParts(pp int) int {
	if s.Microbatches == 0 && pp > 1 {
		return s.Machine.Software.MicrobatchesPerRank * pp
	}
	return s.Microbatches
}
