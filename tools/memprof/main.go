// Command memprof shows where a run's memory goes.
package main

import (
	"context"

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
		Verbs: []app.Verb{snapshotVerb(), replayVerb(), simulateVerb(), {
			Name: "watch", Usage: "sample the memory of this machine's GPUs, as CSV",
			Example: "memprof watch --interval 500 > memory.csv",
			Flags:   w.flags(),
			Run:     func(ctx context.Context, e *app.Env) error { return watch(ctx, e, &w) },
		}},
	}
}
