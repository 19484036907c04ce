package estimate

import (
	"cmp"
	"context"
	"slices"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// Plan is a job that fits, or nearly, with its estimate.
type Plan struct {
	Job      *Job
	Estimate *Estimate
}

// Found is what Search found.
type Found struct {
	Plans    []Plan      // the best of each mesh, the fastest first
	Misses   []Plan      // without plans, the best-fitting of each mesh, the nearest first
	Meshes   int         // that are legal
	Rejected []Rejection // by reason
	Capacity int64       // bytes a rank has
}

// Rejection is a reason for which meshes, or ways to take the batch, are not legal.
type Rejection struct {
	Why   string
	Count int // of degrees or meshes that it refuses
}

// numMisses is how many near misses are told.
const numMisses = 3

// Search finds the top fastest meshes whose best batch, activation checkpointing and schedule fit into memory; without
// any, the meshes that miss it by the fewest bytes. It compares every legal plan: what it does not estimate in full, a
// bound has shown to be slower, or larger, than what it has. Fast is tokens a second; between equals, the one that needs
// less memory, then fewer pipeline, tensor- and context-parallel ranks, then more shards.
func Search(ctx context.Context, s *Space, top int) (*Found, error) {
	w := newSearcher(s)
	var r rejections
	meshes := s.meshes(&r)
	var bounded []bounded
	for _, d := range meshes {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if b := w.bound(&r, d); b.legal {
			bounded = append(bounded, b)
		}
	}
	f := &Found{Meshes: len(meshes), Rejected: r.list, Capacity: w.capacity}
	var err error
	if f.Plans, err = w.fastest(ctx, bounded, max(1, top)); err != nil || f.Plans != nil {
		return f, err
	}
	f.Misses, err = w.nearest(ctx, bounded)
	return f, err
}

// Plans lists every legal plan of s, whether it fits or not.
func Plans(s *Space) (all []*Job) {
	w := newSearcher(s)
	var r rejections
	for _, d := range s.meshes(&r) {
		w.each(bounded{dims: d, batches: s.batches(&r, d)}, s.AC, func(j *Job, schedules []string) {
			all = append(all, ordered(j, schedules)...)
		})
	}
	return all
}

// searcher keeps what many plans share.
type searcher struct {
	*Space
	clock    *clock
	capacity int64
	layouts  map[int][]layout // by pp
}

func newSearcher(s *Space) *searcher {
	w := &searcher{Space: s, clock: newClock(&s.Machine), capacity: s.MemoryBytes, layouts: map[int][]layout{}}
	if w.capacity == 0 {
		w.capacity = s.Machine.Share(s.World)
	}
	return w
}

// bounded is a mesh with the ways to take the batch, and bounds that none of its plans beats.
type bounded struct {
	dims    manifest.MeshDims
	batches []batch
	legal   bool
	time    float64 // seconds a token
	state   int64   // bytes of parameters, gradients and optimizer
}

// bound finds a mesh's bounds.
func (w *searcher) bound(r *rejections, d manifest.MeshDims) bounded {
	b := bounded{dims: d, batches: w.batches(r, d)}
	least := slices.MinFunc(w.AC, func(x, y manifest.ActivationCheckpoint) int { return cmp.Compare(recomputation(x), recomputation(y)) })
	w.each(b, []manifest.ActivationCheckpoint{least}, func(j *Job, _ []string) {
		t, state := w.lower(j, false), round((paramBytes+gradBytes+optimizerBytes)*w.clock.load(j).weights/float64(j.fsdp()))
		if !b.legal || t < b.time {
			b.time = t
		}
		if !b.legal || state < b.state {
			b.state = state
		}
		b.legal = true
	})
	return b
}

// lower is a pace that j does not beat.
func (w *searcher) lower(j *Job, wholeBackwards bool) float64 {
	return (1 - 1e-9) * w.clock.lower(j, wholeBackwards) / j.StepTokens()
}

// recomputation orders activation checkpointing by the work that it adds.
func recomputation(ac manifest.ActivationCheckpoint) int {
	switch {
	case ac.Mode == "none":
		return 0
	case ac.Option == "cheap":
		return 1
	case ac.Mode == "full" || ac.Option == "0":
		return 3
	}
	return 2
}

// layout is the model in stages, and the schedules that have it.
type layout struct {
	stages    []Stage
	schedules []string
}

// layoutsOf lists the layouts of the model on pp ranks, by pp-split's default rule.
func (w *searcher) layoutsOf(pp int) (out []layout) {
	if out, known := w.layouts[pp]; known {
		return out
	}
	schedules := w.Schedules
	if pp == 1 {
		schedules = []string{"1F1B"}
	}
	for _, name := range schedules {
		j := Job{Model: w.Job.Model, Dims: manifest.MeshDims{PP: pp}, Schedule: name, NumMicrobatches: 2 * pp} // a number that all take
		if j.cut(nil) != nil {
			continue
		}
		i := slices.IndexFunc(out, func(l layout) bool { return slices.Equal(l.stages, j.Stages) })
		if i < 0 {
			i = len(out)
			out = append(out, layout{stages: j.Stages})
		}
		out[i].schedules = append(out[i].schedules, name)
	}
	w.layouts[pp] = out
	return out
}

// each calls visit with every plan of a mesh, without a schedule.
func (w *searcher) each(b bounded, acs []manifest.ActivationCheckpoint, visit func(j *Job, schedules []string)) {
	mesh := manifest.Mesh{Dims: b.dims, ReshardAfterForward: w.ReshardAfterForward}
	j := w.Job
	j.Dims, j.Keep = b.dims, mesh.Keeps()
	for _, l := range w.layoutsOf(b.dims.PP) {
		j.Stages = l.stages
		for _, t := range b.batches {
			j.Rows, j.NumMicrobatches, j.Passes = t.rows, t.microbatches, t.passes
			for _, j.AC = range acs {
				visit(&j, l.schedules)
			}
		}
	}
}

// ordered lists j under each of schedules that can run it.
func ordered(j *Job, schedules []string) (out []*Job) {
	for _, name := range schedules {
		if j.Dims.PP == 1 || pipeline.Legal(name, j.Dims.PP, 0, j.NumMicrobatches) == nil {
			with := *j
			with.Schedule = name
			out = append(out, &with)
		}
	}
	return out
}
