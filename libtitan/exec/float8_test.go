package exec

import (
	"context"
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/device/cpu"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// float8Job is a small model on a mesh, in float8 by a recipe: 8 rows a step.
func float8Job(t *testing.T, recipe string, d manifest.MeshDims) *parallel.Job {
	d.PP, d.EP = 1, 1
	dp := d.DPReplicate * d.DPShard
	m := &manifest.Manifest{
		Schema: manifest.SchemaName,
		Model: &manifest.Model{Family: "llama3", Flavor: "custom", Config: manifest.ModelConfig{
			Dim: 64, NumLayers: 2, NumHeads: 4, NumKVHeads: 2, HeadDim: 16, FFNHidden: 96, VocabSize: 64, MaxSeqLen: 16, NormEps: 1e-5, RopeTheta: 500000,
		}},
		Mesh: &manifest.Mesh{WorldSize: dp * d.CP * d.TP, Dims: d, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &manifest.Training{SeqLen: 16, LocalBatchSize: 8 / dp, GlobalBatchSize: 8, GradAccumSteps: 1, Steps: 1,
			DType: "float32", MixedPrecisionParam: "bfloat16", MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &manifest.Optimizer{Name: "AdamW", LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		LRScheduler: &manifest.LRScheduler{DecayType: "linear"},
		Float8:      manifest.NewFloat8(recipe),
	}
	m.Derive()
	job, err := parallel.New(m)
	require.NoError(t, err)
	return job
}

// outcome is what all ranks of a step computed: its loss, and by rank the reciprocals of the weights' scales.
type outcome struct {
	loss   float64
	scales []map[string]float32
	grads  float64 // the largest magnitude of a gradient, NaN where there is one
}

// float8Step runs one step on every rank, weights being value of their name and place.
func float8Step(t *testing.T, job *parallel.Job, value func(fqn string, index int) float32) outcome {
	out := outcome{scales: make([]map[string]float32, job.NumRanks())}
	var mu sync.Mutex
	require.NoError(t, local.Run(context.Background(), job.NumRanks(), func(ctx context.Context, c comm.Comm) error {
		e, err := cpu.New(cpu.Options{Threads: 1})
		if err != nil {
			return err
		}
		params, grads := map[string][]float32{}, map[string][]float32{}
		for _, h := range job.Held(c.Rank()) {
			fqn, p := h.Param.FQN, make([]float32, h.NumElements())
			width := int(h.Sizes[len(h.Sizes)-1])
			for i := range p {
				index := i + int(h.Offsets[0])
				if len(h.Sizes) == 2 {
					row, column := i/width+int(h.Offsets[0]), i%width+int(h.Offsets[1])
					index = row*int(h.Param.Shape[1]) + column
				}
				p[i] = value(fqn, index)
			}
			params[fqn], grads[fqn] = p, make([]float32, len(p))
		}
		prog, err := job.Program(c.Rank())
		if err != nil {
			return err
		}
		mem := NewMemory(prog, 1, job.Rows*16, params, grads)
		for i := range mem.Tokens[0] {
			mem.Tokens[0][i], mem.Labels[0][i] = int32(i*7%64), int32(i*5%64)
		}
		mem.Scale[0] = 1.0 / 128
		run, err := Load(e, prog, mem, c)
		if err != nil {
			return err
		}
		scales := map[string]float32{}
		for i, step := range run.steps {
			if err := step(ctx); err != nil {
				return err
			}
			if err := weightScale(scales, &prog.Steps[i], mem); err != nil {
				return err
			}
		}
		mu.Lock()
		defer mu.Unlock()
		out.scales[c.Rank()] = scales
		out.loss += float64(mem.Loss[0]) / float64(job.Mesh.Size(placement.TP)) // tp's ranks have the same
		for _, g := range grads {
			for _, x := range g {
				out.grads = max(out.grads, math.Abs(float64(x)))
			}
		}
		return nil
	}))
	return out
}

// weightScale notes the scale that a step has made, if it depends on parameters alone.
func weightScale(scales map[string]float32, s *plan.Step, mem *Memory) error {
	if !s.Prologue || s.Node.Op.Name != "float8_cast" {
		return nil
	}
	inverse, err := mem.at(s.Out[1])
	if err == nil {
		scales[s.Node.FQN] = inverse.f32()[0]
	}
	return err
}

// uneven weights: the largest of each is in one place, and so on one rank.
func uneven(fqn string, index int) float32 {
	if index == 777%(len(fqn)*64) {
		return 0.5 + float32(len(fqn))/64
	}
	return float32(math.Sin(float64(index*len(fqn)))) / 8
}

// Weights have the same scales on every mesh, and on all its ranks.
func TestWeightScalesDoNotDependOnTheMesh(t *testing.T) {
	want := float8Step(t, float8Job(t, "tensorwise", manifest.MeshDims{DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}), uneven)
	require.Len(t, want.scales[0], 2*7)
	for fqn, inverse := range want.scales[0] {
		require.InEpsilon(t, (0.5+float64(len(fqn+".weight"))/64)/448, inverse, 1e-6, fqn)
	}
	for _, d := range []manifest.MeshDims{
		{DPReplicate: 1, DPShard: 4, CP: 1, TP: 1}, {DPReplicate: 4, DPShard: 1, CP: 1, TP: 1}, {DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}, {DPReplicate: 1, DPShard: 2, CP: 1, TP: 2},
	} {
		got := float8Step(t, float8Job(t, "tensorwise", d), uneven)
		for rank, scales := range got.scales {
			require.Equal(t, want.scales[0], scales, "%+v rank %d", d, rank)
		}
	}
}

// Weights of zeros give a finite loss and finite gradients, forward and backward, whatever mesh cuts them.
func TestWeightsOfZeros(t *testing.T) {
	zeros := func(fqn string, index int) float32 {
		if fqn == "layers.0.attention.wo.weight" || fqn == "layers.1.feed_forward.w1.weight" {
			return 0
		}
		return uneven(fqn, index)
	}
	for _, recipe := range []string{"tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		for _, d := range []manifest.MeshDims{{DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, {DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}} {
			got := float8Step(t, float8Job(t, recipe, d), zeros)
			require.InDelta(t, 128*math.Log(64), got.loss, 100, recipe)
			require.Less(t, got.grads, 10.0, recipe)
			require.Positive(t, got.grads)
		}
	}
}

// An infinite weight makes the loss a NaN, so that the step is refused before anything changes.
func TestAnInfiniteWeightIsNoticed(t *testing.T) {
	bad := func(fqn string, index int) float32 {
		if fqn == "layers.0.attention.wo.weight" && index == 70 {
			return float32(math.Inf(1))
		}
		return uneven(fqn, index)
	}
	for _, recipe := range []string{"tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		got := float8Step(t, float8Job(t, recipe, manifest.MeshDims{DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}), bad)
		require.True(t, math.IsNaN(got.loss), "%s: %v", recipe, got.loss)
	}
}
