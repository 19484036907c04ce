package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/tools/internal/app"
)

// planOnly reports whether titan-run does not run j, whatever else is right with m.
func planOnly(j *estimate.Job, m *manifest.Manifest) bool {
	return j.AsyncTP || parallel.Runnable(m) != nil
}

// tellMiss warns that j does not fit into ranks of capacity bytes, and of what would help.
func tellMiss(log *slog.Logger, j *estimate.Job, e *estimate.Estimate, on *estimate.Machine, capacity int64) {
	rank, miss := e.Miss(capacity)
	if miss <= 0 {
		return
	}
	of, help := on.Name, []string{"more ranks (--dp-shard, --tp, --pp)"}
	if on.Shared() {
		of, help = holder(on), []string{"a smaller model or --seq-len"}
	}
	for _, h := range []struct {
		helps bool
		flag  string
	}{{j.AC.Mode != "full", "--ac full"}, {j.Rows > 1, "fewer rows (--local-batch-size)"}, {j.Compute == "float32", "--dtype bfloat16"}} {
		if h.helps {
			help = append(help, h.flag)
		}
	}
	log.Warn(fmt.Sprintf("does not fit: misses the %.2f GiB of %s by %.2f GiB on pp rank %d: give meshplan %s",
		float64(capacity)/gib, of, float64(miss)/gib, rank, strings.Join(help, ", or ")))
}

// estimateVerb predicts a given manifest.
func estimateVerb() app.Verb {
	h := machine{gpu: "h100"}
	asyncTP, memory := false, ""
	return app.Verb{
		Name: "estimate", Usage: "fill a manifest's estimate: memory and time", Manifest: true,
		Example: "meshplan --model llama3-8b --dp-shard 8 --dtype bfloat16 | meshplan estimate --gpu h200 --explain",
		Flags: append(h.flags(), app.Switch(&asyncTP, "with tensor-parallel collectives in pieces beside the products", "async-tp"),
			app.Choice(&memory, []string{"pytorch", "titan"}, "whose memory: what PyTorch's allocator reserves, or the arena that titan-run lays out, a traced plan (default: the software's)", "memory-of")),
		Run: func(_ context.Context, e *app.Env) error {
			h.open = e.Open
			on, err := h.read(e.Given)
			if err != nil {
				return err
			}
			m, err := e.ReadManifest()
			if err != nil {
				return err
			}
			j, err := estimate.FromManifest(m)
			if err != nil {
				return exit.Input.Wrap(err)
			}
			j.AsyncTP = asyncTP
			if j.Float8 != "off" && on.FP8TFLOPS == 0 {
				return exit.Input.Errorf("float8.recipe %s: %s has no float8: set it to off", j.Float8, on.Name)
			}
			p, err := estimate.Of(j, &on)
			if err != nil {
				return exit.Input.Wrap(err)
			}
			if memory == "titan" || memory == "" && on.Software.Runtime == "titan" && !planOnly(j, m) {
				ranks, err := arenas(m, !on.Shared())
				if err != nil {
					return err
				}
				p.Plan(ranks)
			}
			fmt.Fprintln(e.Explain, on.As(p.Planned))
			capacity := on.Share(m.Mesh.WorldSize)
			explainEstimate(e.Explain, p, capacity)
			tellMiss(e.Log, j, p, &on, capacity)
			m.Estimate = p.Section(j, &on)
			m.Estimate.PlanOnly = planOnly(j, m)
			return e.WriteManifest(m)
		},
	}
}
