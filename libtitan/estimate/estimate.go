// Package estimate predicts what a job needs before it runs: the bytes that each pipeline rank's GPU holds, and the
// seconds of a step; and it searches the meshes for the job that is fastest and fits.
//
// A [Job] is a model on a mesh with every setting that costs memory or time, a [Machine] is a GPU and its links as
// data. [Of] predicts one job on one machine, [Search] compares all that are legal. The model of memory follows
// PyTorch's FSDP2 and its caching allocator (memory.go), the model of time adds up products, attention, memory-bound
// kernels and collectives (work.go, links.go, clock.go). What is not physics or a data sheet's figure is a constant of
// constants.go, with its reason.
package estimate

import (
	"math"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// Job is what is estimated.
type Job struct {
	Model   manifest.ModelConfig
	Dims    manifest.MeshDims
	SeqLen  int
	Compute string // dtype of computation: float32 or bfloat16

	Rows            int // of a microbatch
	NumMicrobatches int // of one pass through the pipeline
	Passes          int // through the pipeline in an optimizer step

	Schedule string
	Stages   []Stage // in order

	AC          manifest.ActivationCheckpoint
	Compile     bool   // the model
	CompileLoss bool   // the loss
	Float8      string // recipe, or off
	Float8Head  bool   // lm_head is in float8 too
	AsyncTP     bool   // tensor-parallel collectives in pieces beside the products

	WholeSequence bool // under tp, the residual stream is not cut along the sequence
	WholeLogits   bool // under tp, the logits are gathered before the loss
	Ring          bool // under cp, keys and values go round
	Keep          bool // gathered parameters are kept for the whole step

	custom *pipeline.Schedule // of a pipeline with actions of its own
}

// Stage is what one pipeline stage holds of the model.
type Stage struct {
	Rank   int // pp rank that runs it
	First  int // number of its first layer
	Layers int
	Embed  bool // has the embedding
	Head   bool // has norm and lm_head
}

// Estimate is the prediction of a job.
type Estimate struct {
	Ranks                 []Memory // by pp rank
	Planned               bool     // Ranks are what a plan of titan-run takes, not what PyTorch's allocator would
	PeakBytes             int64    // the largest of theirs
	StepSeconds           float64
	TokensPerSecondPerGPU float64
	MFU                   float64 // by the manifest's flops_per_token, against the machine's bf16 peak
	Bubble                float64 // share of the pipeline ranks' time in which they wait for each other
	Parts                 Parts   // of StepSeconds
}

// Of predicts j on m. The job must be one that [FromManifest] made of a valid manifest, or a plan of [Search].
func Of(j *Job, m *Machine) (*Estimate, error) { return newClock(m).estimate(j) }

// Plan takes ranks, of a plan that titan-run lays out, for the memory.
func (e *Estimate) Plan(ranks []Memory) {
	e.Ranks, e.Planned, e.PeakBytes = ranks, true, 0
	for _, r := range ranks {
		e.PeakBytes = max(e.PeakBytes, r.PeakBytes)
	}
}

// Miss is by how many bytes the fullest pipeline rank misses capacity, the bytes of a rank; 0 or less where all fit.
func (e *Estimate) Miss(capacity int64) (rank int, bytes int64) {
	for i, r := range e.Ranks {
		if miss := r.PeakBytes - capacity; i == 0 || miss > bytes {
			rank, bytes = r.PPRank, miss
		}
	}
	return rank, bytes
}

func (c *clock) estimate(j *Job) (*Estimate, error) {
	e := &Estimate{}
	var err error
	if e.Ranks, err = c.memory(j, math.MaxInt64); err != nil {
		return nil, err
	}
	for _, r := range e.Ranks {
		e.PeakBytes = max(e.PeakBytes, r.PeakBytes)
	}
	return e, e.time(j, c)
}

// memory is what each pipeline rank of j needs. It stops at the first that needs more than most.
func (c *clock) memory(j *Job, most int64) (ranks []Memory, err error) {
	for rank := range j.Dims.PP {
		h, err := c.held(j, rank)
		if err != nil {
			return nil, err
		}
		ranks = append(ranks, j.memory(h, rank))
		if ranks[rank].PeakBytes > most {
			break
		}
	}
	return ranks, nil
}

// tokens is the number of tokens in a microbatch on one rank of cp; tensor-parallel ranks share them.
func (j *Job) tokens() float64 {
	return float64(j.Rows) * float64(j.SeqLen) / float64(j.Dims.CP)
}

// fsdp is the number of ranks that share out a stage's parameters.
func (j *Job) fsdp() int { return j.Dims.DPShard * j.Dims.CP }

// wrapped reports whether modules are FSDP units, as torchtitan has it on every mesh but a single GPU's.
func (j *Job) wrapped() bool { return j.world() > 1 }

// world is the number of ranks.
func (j *Job) world() int {
	d := j.Dims
	return d.PP * d.DPReplicate * d.DPShard * d.CP * d.TP
}

// accumulates reports whether whole gradients are added up before they are reduced.
func (j *Job) accumulates() bool { return j.Dims.PP > 1 && j.NumMicrobatches*j.Passes > 1 }

// compilesLoss reports whether the loss is one with its casts.
func (j *Job) compilesLoss(m *Machine) bool { return j.CompileLoss && !m.Software.SeparateLoss }

// computeBytes is the size of a value that is computed with.
func (j *Job) computeBytes() float64 {
	if j.Compute == "float32" {
		return 4
	}
	return 2
}
