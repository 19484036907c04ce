package estimate

import (
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// FromManifest makes a Job of a valid manifest. A pipeline that pp-split has not cut yet is cut by its default rule.
func FromManifest(m *manifest.Manifest) (*Job, error) {
	j := Settings(m)
	return j, j.cut(m)
}

// Settings is the Job of a manifest without its stages, as its Weights need it.
func Settings(m *manifest.Manifest) *Job {
	t := m.Training
	j := &Job{
		Model: m.Model.Config, Dims: m.Mesh.Dims, SeqLen: t.SeqLen, Compute: t.MixedPrecisionParam,
		NumMicrobatches: 1, Passes: t.GradAccumSteps, Schedule: "1F1B", Float8: "off",
		WholeSequence: m.Mesh.DisableSequenceParallel, WholeLogits: m.Mesh.DisableLossParallel, Ring: m.Mesh.CPRotate == "ring", Keep: m.Mesh.Keeps(),
	}
	if p := m.Pipeline; p != nil {
		j.Schedule, j.NumMicrobatches = p.Schedule, p.NumMicrobatches
	}
	j.Rows = t.LocalBatchSize / max(1, j.NumMicrobatches)
	if m.ActivationCheckpoint != nil {
		j.AC = *m.ActivationCheckpoint
	}
	if c := m.Compile; c != nil && c.Enable {
		for _, name := range c.Components {
			j.Compile = j.Compile || name == "model"
			j.CompileLoss = j.CompileLoss || name == "loss"
		}
	}
	if f := m.Float8; f != nil {
		j.Float8 = f.Recipe
		j.Float8Head = f.Recipe != "off" && !slices.ContainsFunc(f.FilterFQNs, func(part string) bool { return strings.Contains("lm_head output", part) })
	}
	return j
}

// cut fills Stages: as the manifest has them, or by pp-split's default rule.
func (j *Job) cut(m *manifest.Manifest) error {
	rankOf, fqns, err := j.stageMap(m)
	if err != nil {
		return err
	}
	first := 0
	for i, names := range fqns {
		s := Stage{Rank: rankOf[i], First: first, Layers: len(names)}
		for _, end := range []struct {
			name string
			has  *bool
		}{{"tok_embeddings", &s.Embed}, {"lm_head", &s.Head}, {"norm", new(bool)}} {
			if slices.Contains(names, end.name) {
				*end.has = true
				s.Layers--
			}
		}
		first += s.Layers
		j.Stages = append(j.Stages, s)
	}
	return nil
}

// stageMap is the pp rank and the modules of each stage.
func (j *Job) stageMap(m *manifest.Manifest) (rankOf []int, fqns [][]string, err error) {
	if m != nil && m.Pipeline != nil && m.Pipeline.Stages != nil {
		s, err := m.Schedule()
		if err != nil {
			return nil, nil, err
		}
		j.custom = s
		for _, stage := range m.Pipeline.Stages {
			fqns = append(fqns, stage.FQNs)
		}
		return s.StageRank, fqns, nil
	}
	if rankOf, err = pipeline.StageRank(j.Schedule, j.Dims.PP, 0, j.NumMicrobatches); err != nil {
		return nil, nil, err
	}
	fqns, err = pipeline.Split(pipeline.Cut{NumLayers: j.Model.NumLayers, NumStages: len(rankOf), FirstWeight: 1, LastWeight: 1})
	return rankOf, fqns, err
}

// every is N of selective N.
func (j *Job) every() int {
	n, _ := strconv.Atoi(j.AC.Option)
	return n
}

// again is what the backward of a layer computes again.
type again int

const (
	nothing again = iota
	cheap         // what its norms and its gated unit give the products
	byOp          // all but what selective op saves
	whole         // all
	numAgain
)

// recomputed is how many layers of s are recomputed, and what of them. Of every N-th, counted from 1, it is the N-th; 0 stands
// for all.
func (j *Job) recomputed(s Stage) (what again, layers int) {
	switch {
	case j.AC.Mode == "full":
		return whole, s.Layers
	case j.AC.Mode != "selective":
		return nothing, 0
	case j.AC.Option == "op":
		return byOp, s.Layers
	case j.AC.Option == "cheap":
		return cheap, s.Layers
	}
	every := max(1, j.every())
	if layers = (s.First+s.Layers)/every - s.First/every; layers > 0 {
		what = whole
	}
	return what, layers
}

// stageParams is the number of a stage's weights on one rank of tp, before FSDP cuts them.
func (j *Job) stageParams(s Stage) float64 {
	n := float64(s.Layers) * j.layerParams() / j.tp()
	if s.Embed {
		n += j.vocabParams() / j.tp()
	}
	if s.Head && !(j.Model.Tied && s.Embed) {
		n += j.vocabParams() / j.tp()
	}
	return n
}
