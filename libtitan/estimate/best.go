package estimate

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// pace is seconds a token, what plans are compared by.
func (p Plan) pace() float64 { return p.Estimate.StepSeconds / p.Job.StepTokens() }

// compare orders plans, the better first.
func compare(p, q Plan) int {
	a, b := p.Job.Dims, q.Job.Dims
	return cmp.Or(cmp.Compare(p.pace(), q.pace()), cmp.Compare(p.Estimate.PeakBytes, q.Estimate.PeakBytes),
		cmp.Compare(a.PP, b.PP), cmp.Compare(a.TP, b.TP), cmp.Compare(a.CP, b.CP), cmp.Compare(a.DPReplicate, b.DPReplicate), cmp.Compare(a.EP, b.EP))
}

// keep puts p among the best n.
func keep(best []Plan, p Plan, n int, order func(p, q Plan) int) []Plan {
	i, _ := slices.BinarySearchFunc(best, p, func(have, p Plan) int {
		if order(have, p) <= 0 {
			return -1
		}
		return 1
	})
	best = slices.Insert(best, i, p)
	return best[:min(n, len(best))]
}

// fastest finds the top fastest plans that fit, one a mesh.
func (w *searcher) fastest(ctx context.Context, meshes []bounded, top int) (best []Plan, err error) {
	slices.SortStableFunc(meshes, func(a, b bounded) int { return cmp.Compare(a.time, b.time) })
	for _, b := range meshes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(best) == top && b.time > best[top-1].pace() {
			break
		}
		if b.state > w.capacity {
			continue
		}
		limit := math.Inf(1)
		if len(best) == top {
			limit = best[top-1].pace()
		}
		p, err := w.fastestOf(b, limit)
		if err != nil {
			return nil, err
		}
		if p.Job != nil {
			best = keep(best, p, top, compare)
		}
	}
	return best, nil
}

// candidate is a plan with a bound.
type candidate struct {
	job   *Job
	bound float64
}

// fastestOf finds the fastest plan of a mesh that fits and is no slower than limit; its Job is nil where none is.
func (w *searcher) fastestOf(b bounded, limit float64) (best Plan, err error) {
	var list []candidate
	w.each(b, w.AC, func(j *Job, schedules []string) {
		if w.lower(j, false) > limit || w.floor(j) > w.capacity {
			return
		}
		for _, j := range ordered(j, schedules) {
			list = append(list, candidate{j, w.lower(j, j.wholeBackwards())})
		}
	})
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.bound, b.bound) })
	for _, c := range list {
		if c.bound > limit || best.Job != nil && c.bound > best.pace() {
			break
		}
		ranks, err := w.clock.memory(c.job, w.capacity)
		if err != nil {
			return best, err
		}
		if largest(ranks).PeakBytes > w.capacity {
			continue
		}
		e, err := w.clock.estimate(c.job)
		if err != nil {
			return best, err
		}
		if p := (Plan{c.job, e}); best.Job == nil || compare(p, best) < 0 {
			best = p
		}
	}
	return best, nil
}

// floor is a size that some rank of j does not go below: the first or the last, with one microbatch.
func (w *searcher) floor(j *Job) int64 {
	l := w.clock.load(j)
	return max(j.memory(l.ends[0], 0).PeakBytes, j.memory(l.ends[1], j.Dims.PP-1).PeakBytes)
}

// smaller orders plans by what they need.
func smaller(p, q Plan) int {
	return cmp.Or(cmp.Compare(p.Estimate.PeakBytes, q.Estimate.PeakBytes), compare(p, q))
}

// nearest finds the plans that need least, one a mesh.
func (w *searcher) nearest(ctx context.Context, meshes []bounded) (best []Plan, err error) {
	slices.SortStableFunc(meshes, func(a, b bounded) int { return cmp.Compare(a.state, b.state) })
	for _, b := range meshes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if len(best) == numMisses && b.state > best[numMisses-1].Estimate.PeakBytes {
			break
		}
		p, err := w.smallestOf(b)
		if err != nil {
			return nil, err
		}
		if p.Job != nil {
			best = keep(best, p, numMisses, smaller)
		}
	}
	return best, nil
}

// smallestOf finds the plan of a mesh that needs least.
func (w *searcher) smallestOf(b bounded) (best Plan, err error) {
	var list []candidate
	w.each(b, w.AC, func(j *Job, schedules []string) {
		for _, j := range ordered(j, schedules) {
			list = append(list, candidate{j, float64(w.floor(j))})
		}
	})
	slices.SortStableFunc(list, func(a, b candidate) int { return cmp.Compare(a.bound, b.bound) })
	for _, c := range list {
		if best.Job != nil && c.bound > float64(best.Estimate.PeakBytes) {
			break
		}
		e, err := w.clock.estimate(c.job)
		if err != nil {
			return best, err
		}
		if p := (Plan{c.job, e}); best.Job == nil || smaller(p, best) < 0 {
			best = p
		}
	}
	return best, nil
}

// largest is the rank that needs most.
func largest(ranks []Memory) Memory {
	return slices.MaxFunc(ranks, func(a, b Memory) int { return cmp.Compare(a.PeakBytes, b.PeakBytes) })
}
