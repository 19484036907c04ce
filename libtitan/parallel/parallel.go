package parallel

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/mesh"
	"titan/libtitan/model/llama3"
	"titan/libtitan/nn"
	"titan/libtitan/pass"
	"titan/libtitan/pipeline"
	"titan/libtitan/placement"
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
	Mesh            placement.Mesh  // of the ranks of a stage
	DP              int             // data-parallel ranks
	schedule        *pipeline.Schedule
	compute         dtype.DType
	spread          pass.Spread
	mu              sync.Mutex
	stages          map[stageKey]*plan.Stage // laid out already: every rank of a mesh runs the same graph
	fusions         map[stageKey]pass.Fusion // what was fused in them
}

type stageKey struct {
	index    int
	backward bool
}

// New validates m and lays its job out. What no rank can run yet is refused here, before anything starts.
func New(m *manifest.Manifest) (*Job, error) {
	if err := manifest.Validate(m); err != nil {
		return nil, err
	}
	if err := Runnable(m); err != nil {
		return nil, err
	}
	compute, err := dtype.Parse(m.Training.MixedPrecisionParam)
	if err != nil {
		return nil, exit.Input.Errorf("training.mixed_precision_param: %w", err)
	}
	j := &Job{Manifest: m, Model: llama3.New(m.Model.Config), compute: compute, stages: map[stageKey]*plan.Stage{}, fusions: map[stageKey]pass.Fusion{}}
	j.Params = j.Model.Params()
	j.Mesh = meshOf(m)
	j.DP = j.Mesh.Size(placement.DPReplicate | placement.DPShard)
	if j.schedule, err = j.cut(); err != nil {
		return nil, err
	}
	j.StageRank = j.schedule.StageRank
	j.Rows = m.Training.LocalBatchSize / j.schedule.NumMicrobatches
	j.NumMicrobatches = j.schedule.NumMicrobatches * m.Training.GradAccumSteps
	j.spread = spread(m, j.shape())
	return j, nil
}

// shape is that of a microbatch on all data-parallel ranks.
func (j *Job) shape() shape {
	return shape{rows: j.Rows * j.DP, seqLen: j.Manifest.Training.SeqLen, dim: j.Manifest.Model.Config.Dim, compute: j.compute}
}

// cut fills Stages and lays the schedule out.
func (j *Job) cut() (*pipeline.Schedule, error) {
	m := j.Manifest
	if m.Pipeline != nil {
		for _, s := range m.Pipeline.Stages {
			j.Stages = append(j.Stages, s.FQNs)
		}
	}
	if j.Stages != nil {
		return m.Schedule()
	}
	if m.Mesh.Dims.PP > 1 {
		return nil, exit.Input.Errorf("pipeline.stages: absent, but mesh.dims.pp is %d: pipe the manifest through pp-split", m.Mesh.Dims.PP)
	}
	j.Stages = [][]string{pipeline.Modules(m.Model.Config.NumLayers)}
	microbatches := 1
	if m.Pipeline != nil {
		microbatches = m.Pipeline.NumMicrobatches
	}
	return pipeline.Build("1F1B", 1, 1, microbatches)
}

// Runnable says what of a valid manifest cannot be trained with.
func Runnable(m *manifest.Manifest) error {
	if ep := m.Mesh.Dims.EP; ep > 1 || m.Model.Config.NumExperts > 0 {
		return exit.Input.Errorf("mesh.dims.ep: %d with %d experts: titan-run trains dense models: plan with --ep 1 --experts 0", ep, m.Model.Config.NumExperts)
	}
	if !slices.Equal(m.Mesh.Order, mesh.Order()) {
		return exit.Input.Errorf("mesh.order: titan-run's ranks lie in the order %s alone: set that", strings.Join(mesh.Order(), ","))
	}
	if m.Estimate != nil && m.Estimate.PlanOnly {
		return exit.Input.Errorf("estimate.plan_only: the plan counts on what titan-run does not do yet: plan without --async-tp")
	}
	return nil
}

// NumRanks is the number of ranks.
func (j *Job) NumRanks() int { return j.Manifest.Mesh.Dims.PP * j.Mesh.World() }

// Where is the place of a rank: pp runs slowest.
func (j *Job) Where(rank int) plan.Where {
	return plan.Where{PP: rank / j.Mesh.World(), Mesh: j.Mesh, Coord: j.Mesh.Coord(rank % j.Mesh.World())}
}

// DPIndex is a rank's place among the data-parallel ranks.
func (j *Job) DPIndex(rank int) int {
	return j.Mesh.Index(j.Where(rank).Coord, placement.DPReplicate|placement.DPShard)
}

// Program plans an optimizer step of one rank.
func (j *Job) Program(rank int) (*plan.Program, error) {
	var actions []pipeline.Action
	one := j.schedule.Ranks[j.Where(rank).PP]
	for a := range j.Manifest.Training.GradAccumSteps {
		for _, act := range one {
			act.Microbatch += a * j.schedule.NumMicrobatches
			actions = append(actions, act)
		}
	}
	return j.build(rank, actions, true)
}

// EvalProgram plans a forward of microbatches microbatches on one rank.
func (j *Job) EvalProgram(rank, microbatches int) (*plan.Program, error) {
	var actions []pipeline.Action
	for i := range microbatches {
		for stage, r := range j.StageRank {
			if r == j.Where(rank).PP {
				actions = append(actions, pipeline.Action{Stage: stage, Kind: pipeline.Forward, Microbatch: i})
			}
		}
	}
	return j.build(rank, actions, false)
}

func (j *Job) build(rank int, actions []pipeline.Action, backward bool) (*plan.Program, error) {
	at := j.Where(rank)
	var stages []*plan.Stage
	for i := range j.Stages {
		if j.StageRank[i] != at.PP {
			continue
		}
		st, err := j.stage(i, backward)
		if err != nil {
			return nil, fmt.Errorf("stage %d: %w", i, err)
		}
		stages = append(stages, st)
	}
	prog, err := plan.Build(at, stages, actions, j.StageRank)
	if err == nil {
		prog.LossApart = !compiles(j.Manifest, "loss")
	}
	return prog, err
}

// Text is the graph that stage i's ranks run, a node a line.
func (j *Job) Text(i int) (string, error) {
	st, err := j.stage(i, true)
	if err != nil {
		return "", err
	}
	return st.Graph.String(), nil
}

// stage is stage i, traced, differentiated and laid out, once for all ranks. Nobody changes it afterwards.
func (j *Job) stage(i int, backward bool) (*plan.Stage, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	key := stageKey{i, backward}
	if have := j.stages[key]; have != nil {
		return have, nil
	}
	st, err := j.layOut(i, backward)
	if err == nil {
		j.stages[key] = st
	}
	return st, err
}

func (j *Job) layOut(i int, backward bool) (*plan.Stage, error) {
	s := j.shape()
	s.float8 = newFloat8(j.Manifest, j.spread)
	st, err := trace(j.Model.Only(j.Stages[i]), i, len(j.Stages), s, backward)
	if err != nil {
		return nil, err
	}
	st, err = shard(checkpoint(st, j.Manifest.ActivationCheckpoint, j.Mesh.Size(placement.TP) == 1), j.spread)
	if err == nil && s.float8 != nil {
		st = st.After(pass.Float8Turn(st.Graph, j.NumMicrobatches == 1 && recomputes(j.Manifest.ActivationCheckpoint)))
	}
	if err != nil || !compiles(j.Manifest, "model") {
		return st, err
	}
	st, did, err := fuse(st)
	j.fusions[stageKey{i, backward}] = did
	return st, err
}
