package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"titan/libtitan/alloc"
	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
	"titan/libtitan/snapshot"
	"titan/tools/internal/app"
)

// simulateFlags say where a plan's values live: in the planned arena, or in the caching allocator.
type simulateFlags struct {
	policy       string
	maxSplitSize int64
	expandable   bool
	runAhead     int
	steps        int
	gpu          string
	rank         int
	top          int
	json         bool
	eachLayer    bool
	requests     []string
}

func simulateVerb() app.Verb {
	f := simulateFlags{top: 8, steps: 2}
	return app.Verb{
		Name: "simulate", Usage: "predict the memory of a manifest's plan, rank by rank, without running it",
		Example:  "meshplan --model llama3-1b --pp 4 | pp-split | memprof simulate --policy record-stream --rank 0",
		Flags:    f.flags(),
		Run:      func(_ context.Context, e *app.Env) error { return f.run(e) },
		Manifest: true,
	}
}

func (f *simulateFlags) flags() []cli.Flag {
	return []cli.Flag{
		app.Choice(&f.policy, alloc.Policies, "in the caching allocator under this policy, not in the planned arena", "policy"),
		app.Bytes(&f.maxSplitSize, "with --policy: do not split blocks of `SIZE` or more", "max-split-size"),
		app.Switch(&f.expandable, "with --policy: expandable segments", "expandable-segments"),
		app.AtLeast(&f.runAhead, 0, "with --policy record-stream: a deferred free completes `N` allocations later (default: at the step's end)", "run-ahead"),
		app.GPU(&f.gpu, "as on a `GPU` of meshplan gpus (default: as on CPU ranks); with --policy record-stream: the host is as far ahead as of it (default: to the step's end)"),
		app.Within(&f.steps, 1, 1000, "with --policy: play `N` steps: each finds what the one before left in the cache", "steps"),
		app.AtLeast(&f.rank, 0, "rank `N` alone (default: all)", "rank"),
		app.Natural(&f.top, "list `N` holders", "top"),
		app.Switch(&f.json, "print one JSON object a rank", "json"),
		app.Switch(&f.eachLayer, "with --policy: tell the layers of the model apart", "each-layer"),
		app.Texts(&f.requests, "no manifest: what the allocator makes of requests of `SIZE`, one after the other", "request"),
	}
}

// check refuses a flag that changes nothing, but where policies are compared: those of record-stream are taken under each.
func (f *simulateFlags) check(given func(string) bool) error {
	requests, cached := len(f.requests) > 0, f.policy != ""
	for _, r := range []struct {
		when  bool
		flags []string
		why   string
	}{
		{requests, []string{"policy", "gpu", "run-ahead", "steps", "rank", "each-layer", "i"}, "has no effect on --request, which has no manifest and frees nothing: leave it out"},
		{!requests && !cached, []string{"max-split-size", "expandable-segments", "run-ahead", "steps", "each-layer"}, "needs --policy: the planned arena is one block, the same in every step, and its table has every layer"},
	} {
		for _, flag := range r.flags {
			if r.when && given(flag) {
				return exit.Usage.Errorf("--%s %s", flag, r.why)
			}
		}
	}
	return nil
}

func (f *simulateFlags) run(e *app.Env) error {
	if err := f.check(e.Given); err != nil {
		return err
	}
	if len(f.requests) > 0 {
		return f.runRequests(e)
	}
	m, err := e.ReadManifest()
	if err != nil {
		return err
	}
	job, err := parallel.New(m)
	if err != nil {
		return err
	}
	ranks := job.NumRanks()
	if f.rank >= ranks {
		return exit.Usage.Errorf("--rank %d: the mesh has ranks 0 to %d", f.rank, ranks-1)
	}
	return e.WriteOut(func(w io.Writer) error {
		for rank := range ranks {
			if e.Given("rank") && rank != f.rank {
				continue
			}
			prog, err := job.Program(rank)
			if err != nil {
				return err
			}
			if err := f.rankReport(w, rank, prog); err != nil {
				return err
			}
		}
		return nil
	})
}

func (f *simulateFlags) rankReport(w io.Writer, rank int, prog *plan.Program) error {
	var on *estimate.Machine
	if f.gpu != "" {
		m, err := estimate.FindMachine(f.gpu)
		if err != nil {
			return err
		}
		on = &m
	}
	if f.policy == "" {
		return f.arena(w, rank, prog, on)
	}
	prog.Rearrange() // as on a GPU
	o := snapshot.Simulation{Config: f.config(), Steps: f.steps, RunAhead: f.runAhead}
	where := "GPUs"
	if on != nil {
		o.Pace, where = pace(on), on.Name
	}
	s, err := o.Run(prog)
	if err != nil {
		return err
	}
	if !f.json {
		fmt.Fprintf(w, "rank %d under %s, as on %s, ", rank, f.policy, where)
	}
	return f.report(w, s)
}

// arena reports what rank holds where values have places in an arena: on CPU ranks, or on a GPU.
func (f *simulateFlags) arena(w io.Writer, rank int, prog *plan.Program, on *estimate.Machine) error {
	where := "CPU ranks"
	if on != nil {
		prog.ForGPU()
		where = on.Name
	}
	r := newArenaReport(rank, where, prog)
	if f.json {
		return app.WriteJSON(w, r)
	}
	return r.print(w, f.top)
}

// launchSeconds is what it takes titan-run's host to give a step of a program memory and to put it on a stream: 13 ms for
// the 559 steps of eight layers, beside two H200; 2.5 s the first time.
const launchSeconds, firstSeconds = 23e-6, 4.5e-3

// pace is that of a machine whose kernels reach two thirds of its peaks.
func pace(m *estimate.Machine) *snapshot.Pace {
	const share = 2. / 3
	return &snapshot.Pace{FLOPS: share * m.BF16TFLOPS * 1e12, Memory: share * m.MemoryGBps * 1e9, Link: share * m.NodeGBps * 1e9, Host: launchSeconds, First: firstSeconds}
}

func (f *simulateFlags) config() alloc.Config {
	c := alloc.Config{MaxSplitSize: f.maxSplitSize, Expandable: f.expandable}
	for p, name := range alloc.Policies {
		if name == f.policy {
			c.Policy = alloc.Policy(p)
		}
	}
	return c
}

func (f *simulateFlags) report(w io.Writer, s *snapshot.Snapshot) error {
	if !f.eachLayer {
		s.MergeLayers()
	}
	d, err := s.Device(-1)
	if err != nil {
		return err
	}
	r := snapshot.Analyze(s, d)
	if f.json {
		return app.WriteJSON(w, r)
	}
	return writeReport(w, r, f.top)
}

// runRequests asks the twin for memory and reports.
func (f *simulateFlags) runRequests(e *app.Env) error {
	rec := snapshot.NewRecorder(f.config())
	twin, err := alloc.New(&alloc.Virtual{}, alloc.Options{Config: f.config(), Trace: rec.Event})
	if err != nil {
		return err
	}
	for _, text := range f.requests {
		bytes, err := manifest.ParseBytes(text)
		if err != nil {
			return exit.Usage.Errorf("--request %s: %w", text, err)
		}
		if _, err := twin.Malloc(alloc.Request{Bytes: bytes, Owner: "a request of " + text}); err != nil {
			return exit.Usage.Errorf("--request %s: %w", text, err)
		}
	}
	s, err := rec.Snapshot()
	if err != nil {
		return err
	}
	return f.report(e.Out, s)
}
