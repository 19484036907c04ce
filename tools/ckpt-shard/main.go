// Command ckpt-shard looks into checkpoints: it lists, shows, compares and verifies them, cuts them anew and converts them.
package main

import (
	"github.com/urfave/cli/v2"

	"titan/libtitan/checkpoint"
	"titan/tools/internal/app"
)

const example = `seq 1 4000 > numbers.txt
meshplan --model tiny-259 --steps 10 | seedinit --out seed | titan-run --data numbers.txt --checkpoint-dir small > small.json
ckpt-shard ls small/step-10 --hash`

func main() { app.Main(tool()) }

func tool() app.Tool {
	return app.Tool{
		Name:  "ckpt-shard",
		Usage: "look into distributed checkpoints",
		About: "Reads the folders that torch.distributed.checkpoint and this project's tools write, whatever their layout, " +
			"in bounded memory. Nothing in a folder runs: its pickles are read by an allow-list.",
		Example: example,
		Verbs:   []app.Verb{lsVerb(), showVerb(), diffVerb(), verifyVerb(), editVerb(), reshardVerb(), convertVerb(), extractVerb(), renameVerb()},
	}
}

// limits are the flags of every verb.
func limits(o *checkpoint.ReadOptions) []cli.Flag {
	o.MaxMemory = 256 << 20
	return []cli.Flag{
		app.Bytes(&o.MaxMemory, "memory for buffers", "max-memory"),
		app.Natural(&o.Jobs, "read `N` tensors at a time (default: one a core)", "jobs", "j"),
	}
}

// progress draws a bar over total bytes while the verb reads; call the function that it returns at the end.
func progress(e *app.Env, o *checkpoint.ReadOptions, name string, total int64) (end func()) {
	bar := e.Bytes(name, total)
	o.Progress = bar.Add
	return bar.Close
}
