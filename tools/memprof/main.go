// Command memprof shows where a run's memory goes.
package main

import (
	"context"

	"titan/tools/internal/app"
)

const example = `meshplan --model llama3-1b --pp 4 | pp-split | memprof simulate
seq 1 4000 > numbers.txt
meshplan --model tiny-259 --steps 3 | titan-run --data numbers.txt --trace-memory trace.json > trained.json
memprof snapshot trace.json --html memory.html`

func main() { app.Main(tool()) }

func tool() app.Tool {
	var w watchFlags
	return app.Tool{
		Name:  "memprof",
		Usage: "profile memory",
		About: "Shows what holds a run's memory. Of a recorded trace, PyTorch's or titan-run's: snapshot says who held it, by call stack or " +
			"module, replay what other policies would have saved. Of a plan: simulate predicts it, by rank and module. Of a GPU: watch samples it.",
		Example: example,
		Verbs: []app.Verb{snapshotVerb(), replayVerb(), simulateVerb(), {
			Name: "watch", Usage: "sample the memory of this machine's GPUs, as CSV",
			Example: "memprof watch --interval 500 > memory.csv",
			Flags:   w.flags(),
			Run:     func(ctx context.Context, e *app.Env) error { return watch(ctx, e, &w) },
		}},
	}
}
