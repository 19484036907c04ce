// Command pp-split cuts a model into pipeline stages: it fills the pipeline section of a manifest, and prints and
// checks schedules.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errw io.Writer) int {
	return app.Run(tool(), args, in, out, errw)
}

func tool() app.Tool {
	o := defaults()
	return app.Tool{
		Name:  "pp-split",
		Usage: "split a model into pipeline stages",
		About: "Reads a manifest, gives each stage its modules by torchtitan's rule (the embedding and the head count as layers) or so that " +
			"stages cost or hold equally much, and writes the manifest on. With --layers and --stages it needs no manifest and prints the stages.",
		Example:  "meshplan --model debugmodel --pp 2 | pp-split --schedule 1F1B --microbatches 4 > job.json",
		Flags:    o.flags(),
		Run:      func(_ context.Context, e *app.Env) error { return split(e, o) },
		Manifest: true,
		Verbs:    []app.Verb{scheduleVerb()},
	}
}

// split writes the manifest with its stages, or the stages alone.
func split(e *app.Env, o *options) error {
	o.given, o.open = e.Given, e.Open
	if o.layers != 0 || o.stages != 0 {
		return standalone(e, o)
	}
	m, err := e.ReadManifest(o.fill)
	if err != nil {
		return err
	}
	if err := report(e, m, o.timeline); err != nil {
		return err
	}
	if o.plot != "" {
		s, err := m.Schedule()
		if err != nil {
			return err
		}
		if err := plot(o.plot, s, o.timeline, pipeline.Ticks()); err != nil {
			return err
		}
	}
	return e.WriteManifest(m)
}

// report warns of a schedule that mostly waits, and explains the stages.
func report(e *app.Env, m *manifest.Manifest, line *pipeline.Timeline) error {
	p := m.Pipeline
	if p.NumMicrobatches < len(p.Stages) {
		e.Log.Warn("fewer microbatches than stages: ranks mostly wait", "microbatches", p.NumMicrobatches, "stages", len(p.Stages), "bubble", p.Bubble)
	}
	t := app.Table(e.Explain)
	fmt.Fprintln(t, "STAGE\tRANK\tMODULES\tPARAMETERS\tMICROBATCHES IN FLIGHT")
	for i, s := range p.Stages {
		fmt.Fprintf(t, "%d\t%d\t%s ... %s (%d)\t%s\t%d\n", s.Stage, s.PPRank, s.FQNs[0], s.FQNs[len(s.FQNs)-1], len(s.FQNs), app.Grouped(s.NumParams), line.InFlight[i])
	}
	t.Flush()
	fmt.Fprintf(e.Explain, "%s, %s: %s, %.1f%% of them idle\n", p.Schedule, manifest.Counted(p.NumMicrobatches, "microbatch"), manifest.Counted(line.Makespan, "tick"), 100*line.Bubble)
	return reportBalance(e.Explain, m)
}
