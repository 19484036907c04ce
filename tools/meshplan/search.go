package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// search writes the best of what o leaves open.
func search(ctx context.Context, e *app.Env, o *options) error {
	space, err := o.space(e)
	if err != nil {
		return err
	}
	found, err := estimate.Search(ctx, space, o.top)
	if err != nil {
		return err
	}
	explainSearch(e.Explain, found, space)
	defer explainRejected(e.Explain, found.Rejected)
	if found.Plans == nil {
		return o.none(found, space)
	}
	var jobs []*manifest.Manifest
	for _, p := range found.Plans {
		m, err := e.NewManifest(o.planned(p.Job).fill)
		if err != nil {
			return err
		}
		m.Estimate = p.Estimate.Section(p.Job, &space.Machine)
		m.Estimate.PlanOnly = planOnly(p.Job, m)
		jobs = append(jobs, m)
	}
	if o.given("schedule") && jobs[0].Mesh.Dims.PP == 1 {
		e.Log.Warn(fmt.Sprintf("--schedule %s has no effect: the best plan has pp 1: give --pp for a pipeline", o.schedule))
	}
	explain(e.Explain, jobs[0])
	if err := parallel.TellFloat8(jobs[0], e.Log, e.Explain); err != nil {
		return err
	}
	explainEstimate(e.Explain, found.Plans[0].Estimate, found.Capacity)
	if o.format == "manifest" {
		return e.WriteManifest(jobs[0])
	}
	return e.WriteOut(func(w io.Writer) error { return writePlans(w, jobs) })
}

// writePlans writes a JSON list.
func writePlans(w io.Writer, jobs []*manifest.Manifest) error {
	var list []json.RawMessage
	for _, m := range jobs {
		var text bytes.Buffer
		if err := manifest.Write(&text, m); err != nil {
			return err
		}
		list = append(list, text.Bytes())
	}
	return app.WriteJSON(w, list)
}

// space is what is searched: every degree, batch and mode that no flag gives.
func (o *options) space(e *app.Env) (*estimate.Space, error) {
	on, err := o.machine.read(o.given)
	if err != nil {
		return nil, err
	}
	if err := o.check(&on); err != nil {
		return nil, err
	}
	one := *o // the same job on one rank, to settle and check what does not depend on the mesh
	one.worldSize, one.dims = 1, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}
	one.batch.LocalBatchSize, one.batch.GlobalBatchSize, one.microbatches = 1, 1, 1
	one.given = o.alsoGiven("world-size", "local-batch-size", "global-batch-size", "microbatches")
	if !o.given("dtype") {
		one.dtype = "bfloat16"
	}
	m, err := e.NewManifest(one.fill)
	if err != nil {
		return nil, err
	}
	j, err := estimate.FromManifest(m)
	if err != nil {
		return nil, exit.Input.Wrap(err)
	}
	j.AsyncTP = o.asyncTP
	s := &estimate.Space{
		Job: *j, World: o.world(), Dims: o.givenDims(), LocalBatch: o.batch.LocalBatchSize, GlobalBatch: o.batch.GlobalBatchSize,
		Microbatches: o.microbatches, Schedules: pipeline.Names(), ReshardAfterForward: m.Mesh.ReshardAfterForward, Machine: on,
	}
	if o.given("schedule") {
		s.Schedules = []string{o.schedule}
	}
	return s, o.checkpointing(s)
}

// checkpointing settles which activation checkpointing is tried.
func (o *options) checkpointing(s *estimate.Space) error {
	names := []string{"none", "selective:cheap", "selective:op", "selective:2", "full"}
	if o.given("ac") {
		names = []string{o.ac}
	}
	for _, name := range names {
		ac, err := manifest.ParseActivationCheckpoint(name)
		if err != nil {
			return exit.Usage.Errorf("--ac: %w", err)
		}
		s.AC = append(s.AC, *ac)
	}
	return nil
}

// check refuses what no search can make sense of.
func (o *options) check(on *estimate.Machine) error {
	d := o.dims
	for _, f := range []struct {
		flag  string
		value int
	}{{"world-size", o.worldSize}, {"pp", d.PP}, {"dp-replicate", d.DPReplicate}, {"dp-shard", d.DPShard}, {"cp", d.CP}, {"tp", d.TP}, {"ep", d.EP},
		{"local-batch-size", o.batch.LocalBatchSize}, {"global-batch-size", o.batch.GlobalBatchSize}, {"microbatches", o.microbatches}, {"top", o.top}} {
		if o.given(f.flag) && (f.value < 1 || f.value > 1<<20) && !(f.flag == "dp-shard" && f.value == -1) {
			return exit.Usage.Errorf("--%s %d: must be 1 to %d", f.flag, f.value, 1<<20)
		}
	}
	switch world := o.world(); {
	case world > 1<<20:
		return exit.Usage.Errorf("--world-size %d: must be 1 to %d", world, 1<<20)
	case o.asyncTP && !o.compile:
		return exit.Usage.Errorf("--async-tp needs --compile")
	case o.float8 != "off" && on.FP8TFLOPS == 0:
		return exit.Input.Errorf("--float8 %s: %s has no float8", o.float8, on.Name)
	}
	return nil
}

// world is the number of ranks: as given, else the product of the degrees that are.
func (o *options) world() int {
	if o.given("world-size") {
		return o.worldSize
	}
	d := o.dims
	return d.PP * d.DPReplicate * max(1, d.DPShard) * d.CP * d.TP
}

// givenDims is the degrees that flags give, the others 0.
func (o *options) givenDims() (d manifest.MeshDims) {
	for _, f := range []struct {
		flag  string
		dst   *int
		value int
	}{{"pp", &d.PP, o.dims.PP}, {"dp-replicate", &d.DPReplicate, o.dims.DPReplicate}, {"dp-shard", &d.DPShard, max(0, o.dims.DPShard)},
		{"cp", &d.CP, o.dims.CP}, {"tp", &d.TP, o.dims.TP}, {"ep", &d.EP, o.dims.EP}} {
		if o.given(f.flag) {
			*f.dst = f.value
		}
	}
	return d
}

// planned is o with what the search has settled.
func (o *options) planned(j *estimate.Job) *options {
	p := *o
	dp := j.Dims.DPReplicate * j.Dims.DPShard
	p.worldSize, p.dims = o.world(), j.Dims
	p.batch.LocalBatchSize = j.Rows * j.NumMicrobatches
	p.batch.GlobalBatchSize = p.batch.LocalBatchSize * dp * j.Passes
	p.ac = strings.TrimSuffix(j.AC.Mode+":"+j.AC.Option, ":")
	p.dtype = j.Compute
	flags := []string{"world-size", "local-batch-size", "global-batch-size"}
	if j.Dims.PP > 1 || j.NumMicrobatches > 1 {
		p.schedule, p.microbatches = j.Schedule, j.NumMicrobatches
		flags = append(flags, "schedule", "microbatches")
	}
	given := o.alsoGiven(flags...)
	p.given = func(flag string) bool { // one stage that takes the batch whole has no schedule
		return given(flag) && (flag != "schedule" || j.Dims.PP > 1 || j.NumMicrobatches > 1)
	}
	return &p
}

// alsoGiven reports whether a flag is given or among flags.
func (o *options) alsoGiven(flags ...string) func(string) bool {
	return func(flag string) bool {
		for _, f := range flags {
			if f == flag {
				return true
			}
		}
		return o.given(flag)
	}
}

// none says why there is no plan: what was asked for contradicts itself, as [manifest.Validate] would say of it, or it does not fit.
func (o *options) none(f *estimate.Found, s *estimate.Space) error {
	if f.Misses == nil {
		var why []string
		for i, r := range f.Rejected {
			if i == 3 {
				why = append(why, fmt.Sprintf("and %d more reasons (see --explain)", len(f.Rejected)-3))
				break
			}
			why = append(why, r.Why)
		}
		return exit.Input.Errorf("no mesh of %d ranks is legal: %s", s.World, strings.Join(why, "; "))
	}
	var near []string
	for _, p := range f.Misses {
		miss := p.Estimate.PeakBytes - f.Capacity
		near = append(near, fmt.Sprintf("%s misses by %.2f GiB (%d bytes)", brief(p.Job), float64(miss)/gib, miss))
	}
	hint := ""
	if !o.given("world-size") && !s.Machine.Shared() {
		hint = fmt.Sprintf("; without --world-size it plans for %s: give it, as in --world-size %d", manifest.Counted(s.World, "rank"), 8*s.World)
	}
	return exit.No.Errorf("no plan fits the %.2f GiB of %s (%d bytes): %s%s", float64(f.Capacity)/gib, holder(&s.Machine), f.Capacity, strings.Join(near, "; "), hint)
}
