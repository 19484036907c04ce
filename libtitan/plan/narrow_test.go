package plan_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// smallJob is one microbatch of two small layers in bfloat16 on one rank, once set has changed it; its products fit float8.
func smallJob(t *testing.T, set func(m *manifest.Manifest)) *parallel.Job {
	m := &manifest.Manifest{
		Schema: manifest.SchemaName,
		Model: &manifest.Model{Family: "llama3", Flavor: "custom", Config: manifest.ModelConfig{
			Dim: 64, NumLayers: 2, NumHeads: 4, NumKVHeads: 2, HeadDim: 16, FFNHidden: 96, VocabSize: 256, MaxSeqLen: 16, NormEps: 1e-5, RopeTheta: 500000,
		}},
		Mesh: &manifest.Mesh{Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &manifest.Training{SeqLen: 16, LocalBatchSize: 8, GlobalBatchSize: 8, GradAccumSteps: 1, Steps: 1,
			DType: "float32", MixedPrecisionParam: "bfloat16", MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &manifest.Optimizer{Name: "AdamW", LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		LRScheduler: &manifest.LRScheduler{DecayType: "linear"},
	}
	set(m)
	d := m.Mesh.Dims
	m.Mesh.WorldSize = d.PP * d.DPReplicate * d.DPShard * d.CP * d.TP
	m.Training.LocalBatchSize = m.Training.GlobalBatchSize / (d.DPReplicate * d.DPShard * m.Training.GradAccumSteps)
	m.Derive()
	j, err := parallel.New(m)
	require.NoError(t, err)
	return j
}

// pipelined cuts the model in two stages.
func pipelined(microbatches int) func(m *manifest.Manifest) {
	return func(m *manifest.Manifest) {
		all := pipeline.Modules(m.Model.Config.NumLayers)
		m.Mesh.Dims.PP = 2
		m.Pipeline = &manifest.Pipeline{Schedule: "1F1B", NumMicrobatches: microbatches, Stages: []manifest.Stage{{FQNs: all[:2]}, {Stage: 1, PPRank: 1, FQNs: all[2:]}}}
	}
}

func inFloat8(recipe string) func(m *manifest.Manifest) {
	return func(m *manifest.Manifest) { m.Float8 = manifest.NewFloat8(recipe) }
}

// narrowed are the gradients that a program keeps in bfloat16, by name, with those that it keeps in float32.
func narrowed(t *testing.T, p *plan.Program) map[string]bool {
	out := map[string]bool{}
	for i := range p.Steps {
		for _, made := range p.Steps[i].Out {
			for _, s := range made.Named() {
				if s.Class == plan.Grad {
					out[s.Name] = s.DType == dtype.BFloat16
					require.True(t, out[s.Name] || s.DType == dtype.Float32, s.Name)
				}
			}
		}
	}
	return out
}

// A weight's gradient is as narrow as the product that makes all of it, on whatever arrangement of one step; those of the embedding
// and of norms are float32, and so is all that is added up, computed in float32 or exchanged between stages.
func TestNarrowGrads(t *testing.T) {
	products := func(name string) bool {
		return !strings.Contains(name, "norm") && !strings.Contains(name, "tok_embeddings")
	}
	none := func(string) bool { return false }
	for _, c := range []struct {
		name   string
		set    func(m *manifest.Manifest)
		narrow func(name string) bool
		float8 bool // of float8 products
	}{
		{"bfloat16", func(*manifest.Manifest) {}, products, false},
		{"compiled", func(m *manifest.Manifest) {
			m.Compile = &manifest.Compile{Enable: true, Components: []string{"model", "loss"}}
		}, products, false},
		{"activation checkpointing", func(m *manifest.Manifest) { m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: "full"} }, products, false},
		{"tensorwise", inFloat8("tensorwise"), products, true},
		{"rowwise", inFloat8("rowwise"), products, true},
		{"rowwise_with_gw_hp", inFloat8("rowwise_with_gw_hp"), products, false},
		{"float32", func(m *manifest.Manifest) { m.Training.MixedPrecisionParam = "float32" }, none, false},
		{"accumulation", func(m *manifest.Manifest) { m.Training.GradAccumSteps = 2 }, none, false},
		{"tied", func(m *manifest.Manifest) { m.Model.Config.Tied = true }, products, false},
		{"tp", func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }, products, false},
		{"dp_replicate", func(m *manifest.Manifest) { m.Mesh.Dims.DPReplicate = 2 }, none, false},
		{"dp_shard", func(m *manifest.Manifest) { m.Mesh.Dims.DPShard = 2 }, none, false},
		{"cp", func(m *manifest.Manifest) { m.Mesh.Dims.CP = 2 }, none, false},
		{"pp", pipelined(4), none, false},
		{"pp, one microbatch, tied", func(m *manifest.Manifest) {
			m.Model.Config.Tied = true
			pipelined(1)(m)
		}, none, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := smallJob(t, c.set)
			for rank := range j.NumRanks() {
				for _, arrange := range []func(p *plan.Program){(*plan.Program).ForGPU, (*plan.Program).ForCache} {
					p, err := j.Program(rank)
					require.NoError(t, err)
					require.NotContains(t, narrowed(t, p), true, "as it is built, and runs on a CPU")
					arrange(p)
					got := narrowed(t, p)
					require.Len(t, got, len(j.Held(rank)))
					require.Equal(t, c.float8, slices.ContainsFunc(p.Steps, func(s plan.Step) bool {
						return s.Kind == plan.Compute && s.Node.Op.Name == "float8_product" && s.Out[0].Class == plan.Grad
					}))
					for name, is := range got {
						require.Equal(t, c.narrow(name), is, fmt.Sprintf("rank %d, %s", rank, name))
					}
				}
			}
		})
	}
}

// Narrow gradients take half their room, in the arena and beside it.
func TestNarrowGradsTakeHalf(t *testing.T) {
	j := smallJob(t, func(*manifest.Manifest) {})
	wide, err := j.Program(0)
	require.NoError(t, err)
	narrow, err := j.Program(0)
	require.NoError(t, err)
	narrow.NarrowGrads()
	saved := 0
	for _, h := range j.Held(0) {
		if narrowed(t, narrow)[h.Param.FQN] {
			saved += 2 * int(h.NumElements())
		}
	}
	require.Positive(t, saved)
	require.Equal(t, plan.Measure(wide).Fixed[plan.Grad]-saved, plan.Measure(narrow).Fixed[plan.Grad])
	require.Equal(t, fixtures(wide)-saved, fixtures(narrow))
	wide.PlaceGrads()
	narrow.PlaceGrads()
	require.Less(t, narrow.ArenaBytes, wide.ArenaBytes)
}

// fixtures is the memory that lives as long as a rank trains with p.
func fixtures(p *plan.Program) (bytes int) {
	for _, f := range p.Fixed() {
		bytes += f.Bytes
	}
	return bytes
}
