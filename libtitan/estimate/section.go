package estimate

import (
	"fmt"
	"strconv"
	"strings"

	"titan/libtitan/manifest"
)

// Section is e as a manifest's section; whether the job can be run is not its matter. Figures are rounded to six digits so that every machine writes the same.
func (e *Estimate) Section(j *Job, m *Machine) *manifest.Estimate {
	s := &manifest.Estimate{
		GPU: m.Name, PeakBytes: e.PeakBytes, StepSeconds: sixDigits(e.StepSeconds),
		TokensPerSecondPerGPU: sixDigits(e.TokensPerSecondPerGPU), MFU: sixDigits(e.MFU), Bubble: sixDigits(e.Bubble), ComputedFrom: append(j.sources(m), "software: "+m.As(e.Planned)),
	}
	for _, r := range e.Ranks {
		s.Ranks = append(s.Ranks, manifest.EstimateRank{PPRank: r.PPRank, ParamsBytes: r.Params, GradsBytes: r.Grads, OptimizerBytes: r.Optimizer, ActivationsBytes: r.Activations,
			LogitsBytes: r.Logits, BuffersBytes: r.Buffers, FragmentationBytes: r.Fragmentation, AllocatedBytes: r.AllocatedBytes, PeakBytes: r.PeakBytes})
	}
	for _, p := range e.Seconds() {
		if p.Seconds > 0 {
			s.Seconds = append(s.Seconds, manifest.EstimateSeconds{Part: p.Part, Seconds: sixDigits(p.Seconds)})
		}
	}
	return s
}

// Seconds lists the parts of a step's time by name; the last is what the rank that works longest waits for others.
func (e *Estimate) Seconds() []manifest.EstimateSeconds {
	p := e.Parts
	return []manifest.EstimateSeconds{
		{Part: "products", Seconds: p.Products}, {Part: "attention", Seconds: p.Attention}, {Part: "memory_bound", Seconds: p.MemoryBound},
		{Part: "float8_casts", Seconds: p.Float8Casts}, {Part: "tensor_parallel", Seconds: p.TensorParallel}, {Part: "context_parallel", Seconds: p.ContextParallel},
		{Part: "expert_parallel", Seconds: p.ExpertParallel}, {Part: "fsdp", Seconds: p.FSDP}, {Part: "optimizer", Seconds: p.Optimizer},
		{Part: "host", Seconds: p.Host}, {Part: "pipeline_waits", Seconds: max(0, e.StepSeconds-p.Sum())},
	}
}

// sources says what an estimate follows from.
func (j *Job) sources(m *Machine) []string {
	d := j.Dims
	mesh := fmt.Sprintf("mesh: pp %d, dp_replicate %d, dp_shard %d, cp %d, tp %d, ep %d", d.PP, d.DPReplicate, d.DPShard, d.CP, d.TP, d.EP)
	batch := fmt.Sprintf("batch: %d rows of %d tokens a microbatch, %d microbatches, %d passes", j.Rows, j.SeqLen, j.NumMicrobatches, j.Passes)
	mode := fmt.Sprintf("modes: %s, activation checkpointing %s, float8 %s", j.Compute, strings.TrimSuffix(j.AC.Mode+":"+j.AC.Option, ":"), j.Float8)
	for _, flag := range []struct {
		on   bool
		name string
	}{{j.Compile, "compile"}, {j.CompileLoss && !m.Software.SeparateLoss, "fused loss"}, {j.AsyncTP, "async tp"}} {
		if flag.on {
			mode += ", " + flag.name
		}
	}
	out := []string{mesh, batch, mode}
	if d.PP > 1 {
		out = append(out, fmt.Sprintf("pipeline: %s, %d stages", j.Schedule, len(j.Stages)))
	}
	return append(out, fmt.Sprintf("machine: %s: %g bf16 TFLOP/s, %g GB/s memory, %g GB/s node, %g GB/s network, %d GPUs a node",
		m.Name, m.BF16TFLOPS, m.MemoryGBps, m.NodeGBps, m.NetworkGBps, m.GPUsPerNode))
}

func sixDigits(x float64) float64 {
	y, _ := strconv.ParseFloat(strconv.FormatFloat(x, 'e', 5, 64), 64)
	return y
}
