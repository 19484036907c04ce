// Command memprof shows where a run's memory goes.
package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"text/tabwriter"

	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
	"titan/tools/internal/app"
)

const example = `meshplan --model llama3-1b --pp 4 | pp-split | memprof simulate
memprof snapshot snapshot.pickle --html memory.html
memprof replay snapshot.pickle`

func main() { app.Main(tool()) }

func tool() app.Tool {
	var w watchFlags
	return app.Tool{
		Name:    "memprof",
		Usage:   "profile memory",
		About:   "Shows what holds a run's memory: in a recorded trace by call stack or module, and what each remedy would save; in a\nplan by rank and module.",
		Example: example,
		Verbs: []app.Verb{snapshotVerb(), replayVerb(), {
			Name: "simulate", Usage: "predict the memory of a manifest's plan, rank by rank, without running it",
			Example:  example,
			Run:      simulate,
			Manifest: true,
		}, {
			Name: "watch", Usage: "sample the memory of this machine's GPUs, as CSV",
			Example: "memprof watch --interval 500 > memory.csv",
			Flags:   w.flags(),
			Run:     func(ctx context.Context, e *app.Env) error { return watch(ctx, e, &w) },
		}},
	}
}

// simulate plans every rank and prints what it will hold.
func simulate(_ context.Context, e *app.Env) error {
	m, err := e.ReadManifest()
	if err != nil {
		return err
	}
	job, err := parallel.New(m)
	if err != nil {
		return err
	}
	return e.WriteOut(func(w io.Writer) error {
		for rank := range job.NumRanks() {
			prog, err := job.Program(rank)
			if err != nil {
				return err
			}
			if err := print(w, rank, prog); err != nil {
				return err
			}
		}
		return nil
	})
}

// print writes the table of one rank: its totals, then who holds the activations at their peak.
func print(w io.Writer, rank int, prog *plan.Program) error {
	u := plan.Measure(prog)
	params := u.Fixed[plan.Param]
	size := func(n int) string { return manifest.FormatBytes(int64(n)) }
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "rank %d: %d steps, peak at step %d (%v)\n", rank, len(prog.Steps), u.PeakStep, prog.Steps[u.PeakStep].Action)
	for _, row := range []struct {
		name  string
		bytes int
	}{
		{"params", params},
		{"grads", u.Fixed[plan.Grad]},
		{"optimizer", 2 * params},
		{"constants", u.Fixed[plan.Const]},
		{"activations, live at peak", u.PeakBytes},
		{"activations, arena", prog.ArenaBytes},
		{"total", 4*params + u.Fixed[plan.Const] + prog.ArenaBytes},
	} {
		fmt.Fprintf(t, "%s\t%s\t%d\t\n", row.name, size(row.bytes), row.bytes)
	}
	fmt.Fprintf(t, "held at peak by\t\t\t\n")
	const most = 8
	for _, h := range u.Holders[:min(most, len(u.Holders))] {
		fmt.Fprintf(t, "%s\t%s\t%d\t\n", cmp.Or(h.FQN, "loss"), size(h.Bytes), h.Bytes)
	}
	return t.Flush()
}
