// Command meshplan plans a job: the model, the mesh that trains it, the batch, the optimizer. It starts the
// manifest that the other tools read.
package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/tools/internal/app"
)

func main() { os.Exit(run(os.Args, os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, in io.Reader, out, errw io.Writer) int {
	return app.Run(tool(), args, in, out, errw)
}

func tool() app.Tool {
	o := defaults()
	return app.Tool{
		Name:  "meshplan",
		Usage: "plan the device mesh of a training job",
		About: "Writes the manifest of a job to stdout: a model, given by name, by a Hugging Face config.json or by its dimensions, on a mesh " +
			"of the given degrees. With --gpu, --hardware, --memory or --top it searches: what is given is kept, and of all meshes, " +
			"batches, activation checkpointing and schedules the fastest that fits is taken.",
		Example: "meshplan --model llama3-8b --world-size 64 --gpu h100 --explain | pp-split --explain > job.json",
		Flags:   o.flags(),
		Run:     func(ctx context.Context, e *app.Env) error { return start(ctx, e, o) },
		Starts:  true,
		Verbs:   []app.Verb{modelsVerb(), gpusVerb(), estimateVerb(), checkVerb(), schemaVerb()},
	}
}

// start writes the manifest of o, or of the best that it leaves open.
func start(ctx context.Context, e *app.Env, o *options) error {
	o.given, o.machine.open = e.Given, e.Open
	for _, flag := range []string{"gpu", "hardware", "memory", "gpus-per-node", "top", "format"} {
		if e.Given(flag) {
			return search(ctx, e, o)
		}
	}
	switch {
	case o.asyncTP:
		return exit.Usage.Errorf("--async-tp is for the search, since titan-run does not do it yet: add --gpu or --hardware")
	case e.Given("software"):
		return exit.Usage.Errorf("--software is for the search, whose times it sets: add --gpu or --hardware, or give it to meshplan estimate")
	}
	m, err := e.NewManifest(o.fill)
	if err != nil {
		return err
	}
	if p := m.Pipeline; o.given("schedule") && m.Mesh.Dims.PP == 1 && p != nil {
		e.Log.Warn(fmt.Sprintf("--schedule %s without a pipeline: pp is 1, so each rank takes the local batch in %s by itself: give --pp for a pipeline", o.schedule, manifest.Counted(p.NumMicrobatches, "microbatch")))
	}
	explain(e.Explain, m)
	if err := parallel.TellFloat8(m, e.Log, e.Explain); err != nil {
		return err
	}
	return e.WriteManifest(m)
}

// explain prints m for people.
func explain(w io.Writer, m *manifest.Manifest) {
	t := app.Table(w)
	defer t.Flush()
	c, d, b := m.Model.Config, m.Mesh.Dims, m.Training
	fmt.Fprintf(t, "model\t%s: dim %d, %d layers, %d heads, %d kv heads, ffn %d, vocab %d\n", m.Model.Flavor, c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.FFNHidden, c.VocabSize)
	fmt.Fprintf(t, "parameters\t%s\n", app.Grouped(m.Model.NumParams))
	fmt.Fprintf(t, "flops a token\t%s at seq_len %d\n", app.Grouped(m.Model.FlopsPerToken), b.SeqLen)
	fmt.Fprintf(t, "mesh\t%s: pp %d, dp_replicate %d, dp_shard %d, cp %d, tp %d, ep %d\n", manifest.Counted(m.Mesh.WorldSize, "rank"), d.PP, d.DPReplicate, d.DPShard, d.CP, d.TP, d.EP)
	fmt.Fprintf(t, "batch\t%d rows = %d local x %d data-parallel ranks x %d accumulated; %s tokens a step\n",
		b.GlobalBatchSize, b.LocalBatchSize, d.DPReplicate*d.DPShard, b.GradAccumSteps, app.Grouped(int64(b.GlobalBatchSize)*int64(b.SeqLen)))
	if p := m.Pipeline; p != nil {
		fmt.Fprintf(t, "pipeline\t%s, %d microbatches of %d rows\n", p.Schedule, p.NumMicrobatches, b.LocalBatchSize/p.NumMicrobatches)
	}
}
