package estimate

import (
	"fmt"
	"strconv"
	"strings"
)

// Section is an estimate as a manifest's section has it. Sizes are bytes, times seconds of an optimizer step, rounded to
// six digits so that every machine writes the same.
type Section struct {
	GPU                   string           `json:"gpu"`       // the machine, by name
	PlanOnly              bool             `json:"plan_only"` // titan-run does not run it yet
	Ranks                 []SectionRank    `json:"ranks"`     // by pp rank
	PeakBytes             int64            `json:"peak_bytes"`
	StepSeconds           float64          `json:"step_seconds"`
	TokensPerSecondPerGPU float64          `json:"tokens_per_second_per_gpu"`
	MFU                   float64          `json:"mfu"`
	Bubble                float64          `json:"bubble"`
	Seconds               []SectionSeconds `json:"seconds"`       // of the pipeline rank that works longest
	ComputedFrom          []string         `json:"computed_from"` // what the figures follow from
}

// SectionRank is what one GPU of a pipeline rank holds. Without allocated_bytes and peak_bytes, the parts add up to the peak.
type SectionRank struct {
	PPRank             int   `json:"pp_rank"`
	ParamsBytes        int64 `json:"params_bytes"`
	GradsBytes         int64 `json:"grads_bytes"`
	OptimizerBytes     int64 `json:"optimizer_bytes"`
	ActivationsBytes   int64 `json:"activations_bytes"`
	LogitsBytes        int64 `json:"logits_bytes"`
	BuffersBytes       int64 `json:"buffers_bytes"`
	FragmentationBytes int64 `json:"fragmentation_bytes"`
	AllocatedBytes     int64 `json:"allocated_bytes"` // most that is live at once
	PeakBytes          int64 `json:"peak_bytes"`      // reserved: what the GPU must have
}

// SectionSeconds is one part of a step's time.
type SectionSeconds struct {
	Part    string  `json:"part"`
	Seconds float64 `json:"seconds"`
}

// Section is e as a manifest's section.
func (e *Estimate) Section(j *Job, m *Machine) *Section {
	s := &Section{
		GPU: m.Name, PlanOnly: j.PlanOnly(), PeakBytes: e.PeakBytes, StepSeconds: sixDigits(e.StepSeconds),
		TokensPerSecondPerGPU: sixDigits(e.TokensPerSecondPerGPU), MFU: sixDigits(e.MFU), Bubble: sixDigits(e.Bubble), ComputedFrom: j.sources(m),
	}
	for _, r := range e.Ranks {
		s.Ranks = append(s.Ranks, SectionRank{r.PPRank, r.Params, r.Grads, r.Optimizer, r.Activations, r.Logits, r.Buffers, r.Fragmentation, r.AllocatedBytes, r.PeakBytes})
	}
	for _, p := range e.Seconds() {
		if p.Seconds > 0 {
			s.Seconds = append(s.Seconds, SectionSeconds{p.Part, sixDigits(p.Seconds)})
		}
	}
	return s
}

// PlanOnly reports whether titan-run does not run j yet, whatever manifest.Validate says.
func (j *Job) PlanOnly() bool { return j.AsyncTP || j.Dims.EP > 1 || j.Model.NumExperts > 0 }

// Seconds lists the parts of a step's time by name; the last is what the rank that works longest waits for others.
func (e *Estimate) Seconds() []SectionSeconds {
	p := e.Parts
	return []SectionSeconds{
		{"products", p.Products}, {"attention", p.Attention}, {"memory_bound", p.MemoryBound}, {"float8_casts", p.Float8Casts},
		{"tensor_parallel", p.TensorParallel}, {"context_parallel", p.ContextParallel}, {"expert_parallel", p.ExpertParallel},
		{"fsdp", p.FSDP}, {"optimizer", p.Optimizer}, {"host", p.Host}, {"pipeline_waits", max(0, e.StepSeconds-p.Sum())},
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
