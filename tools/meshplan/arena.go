package main

import (
	"titan/libtitan/estimate"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// arenas is the memory of each pipeline rank as titan-run lays it out: its first rank's whole step is planned, and
// activations, logits and buffers have places in one arena. Nothing is fragmented. On GPUs gradients share the arena, and
// what FSDP gathers lies in windows, which count as buffers, as do bfloat16 copies of parameters.
func arenas(m *manifest.Manifest, gpu bool) ([]estimate.Memory, error) {
	job, err := parallel.New(m)
	if err != nil {
		return nil, err
	}
	ranks := make([]estimate.Memory, m.Mesh.Dims.PP)
	for pp := range ranks {
		program, err := job.Program(pp * job.Mesh.World())
		if err != nil {
			return nil, err
		}
		if gpu {
			program.ForGPU()
		}
		use := plan.Measure(program)
		r := &ranks[pp]
		r.PPRank = pp
		r.Params, r.Grads = int64(use.Fixed[plan.Param]), int64(use.Fixed[plan.Grad])
		r.Optimizer = 2 * r.Params
		r.Activations, r.Buffers = int64(program.ArenaBytes), int64(program.PlannedBytes()-program.ArenaBytes)
		r.PeakBytes = r.Params + r.Grads + r.Optimizer + r.Activations + r.Buffers
		r.AllocatedBytes = r.PeakBytes
		if !program.GradsInArena {
			r.AllocatedBytes += int64(use.PeakBytes) - r.Activations
		}
	}
	return ranks, nil
}
