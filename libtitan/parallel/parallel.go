package parallel

import (
	"fmt"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/nn"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// Job is a manifest, ready to be planned for each of its ranks.
type Job struct {
	Manifest        *manifest.Manifest
	Model           *llama3.Decoder // whole
	Params          []*nn.Param     // of the whole model, in order
	Stages          [][]string      // FQNs of each stage
	StageRank       []int           // pp rank of each stage
	NumMicrobatches int             // of an optimizer step: those of the schedule times the accumulation steps
	Rows            int             // of a microbatch
	schedule        *pipeline.Schedule
	compute         dtype.DType
}

// New validates m and lays its job out. What no rank can run yet is refused here, before anything starts.
func New(m *manifest.Manifest) (*Job, error) {
	if err := manifest.Validate(m); err != nil {
		return nil, err
	}
	if err := runnable(m); err != nil {
		return nil, err
	}
	compute, err := dtype.Parse(m.Training.MixedPrecisionParam)
	if err != nil {
		return nil, exit.Input.Errorf("training.mixed_precision_param: %w", err)
	}
	j := &Job{Manifest: m, Model: llama3.New(m.Model.Config), compute: compute}
	j.Params = j.Model.Params()
	name, microbatches := "1F1B", 1
	if p := m.Pipeline; p != nil {
		name, microbatches = p.Schedule, p.NumMicrobatches
		for _, s := range p.Stages {
			j.Stages = append(j.Stages, s.FQNs)
			j.StageRank = append(j.StageRank, s.PPRank)
		}
	}
	if j.Stages == nil {
		if m.Mesh.Dims.PP > 1 {
			return nil, exit.Input.Errorf("pipeline.stages: absent, but mesh.dims.pp is %d: pipe the manifest through pp-split", m.Mesh.Dims.PP)
		}
		j.Stages, j.StageRank = [][]string{pipeline.Modules(m.Model.Config.NumLayers)}, []int{0}
	}
	if j.schedule, err = pipeline.Build(name, m.Mesh.Dims.PP, len(j.Stages)/m.Mesh.Dims.PP, microbatches); err != nil {
		return nil, exit.Input.Wrap(err)
	}
	j.Rows = m.Training.LocalBatchSize / microbatches
	j.NumMicrobatches = microbatches * m.Training.GradAccumSteps
	return j, nil
}

// runnable says what of a valid manifest cannot be trained with.
func runnable(m *manifest.Manifest) error {
	d := m.Mesh.Dims
	for _, axis := range []struct {
		name   string
		degree int
	}{{"dp_replicate", d.DPReplicate}, {"dp_shard", d.DPShard}, {"cp", d.CP}, {"tp", d.TP}, {"ep", d.EP}} {
		if axis.degree > 1 {
			return exit.Input.Errorf("mesh.dims.%s: %d: titan-run trains on pp alone so far: plan with --%s 1", axis.name, axis.degree, axis.name)
		}
	}
	if ac := m.ActivationCheckpoint; ac != nil && ac.Mode != "none" {
		return exit.Input.Errorf("activation_checkpoint.mode: %s: titan-run keeps all activations so far: set it to none", ac.Mode)
	}
	if m.Compile != nil && m.Compile.Enable {
		return exit.Input.Errorf("compile.enable: true: titan-run does not fuse so far: set it to false")
	}
	if f := m.Float8; f != nil && f.Recipe != "off" {
		return exit.Input.Errorf("float8.recipe: %s: titan-run computes in float32 or bfloat16 so far: set it to off", f.Recipe)
	}
	return nil
}

// NumRanks is the number of pp ranks.
func (j *Job) NumRanks() int { return j.Manifest.Mesh.Dims.PP }

// Program plans an optimizer step of one pp rank.
func (j *Job) Program(rank int) (*plan.Program, error) {
	var actions []pipeline.Action
	one := j.schedule.Ranks[rank]
	for a := range j.Manifest.Training.GradAccumSteps {
		for _, act := range one {
			act.Microbatch += a * j.schedule.NumMicrobatches
			actions = append(actions, act)
		}
	}
	return j.build(rank, actions, true)
}

// EvalProgram plans a forward of microbatches microbatches on one pp rank.
func (j *Job) EvalProgram(rank, microbatches int) (*plan.Program, error) {
	var actions []pipeline.Action
	for i := range microbatches {
		for stage, r := range j.StageRank {
			if r == rank {
				actions = append(actions, pipeline.Action{Stage: stage, Kind: pipeline.Forward, Microbatch: i})
			}
		}
	}
	return j.build(rank, actions, false)
}

func (j *Job) build(rank int, actions []pipeline.Action, backward bool) (*plan.Program, error) {
	t := j.Manifest.Training
	var stages []*plan.Stage
	for i, fqns := range j.Stages {
		if j.StageRank[i] != rank {
			continue
		}
		s := shape{j.Rows, t.SeqLen, j.Manifest.Model.Config.Dim, j.compute}
		st, err := trace(j.Model.Only(fqns), i, len(j.Stages), s, backward)
		if err != nil {
			return nil, fmt.Errorf("stage %d: %w", i, err)
		}
		stages = append(stages, st)
	}
	return plan.Build(rank, stages, actions, j.StageRank)
}

// StageParams lists the parameters that a pp rank holds, as indices into Params. Under pp a tied head's weight
// is held by the first and the last rank.
func (j *Job) StageParams(rank int) []int {
	index := map[*nn.Param]int{}
	for i, p := range j.Params {
		index[p] = i
	}
	var out []int
	seen := map[int]bool{}
	for i, fqns := range j.Stages {
		if j.StageRank[i] != rank {
			continue
		}
		for _, p := range j.Model.Only(fqns).Params() {
			if !seen[index[p]] {
				seen[index[p]] = true
				out = append(out, index[p])
			}
		}
	}
	return out
}
