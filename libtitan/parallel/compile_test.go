package parallel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// compiledJob is tiny in bfloat16 with components fused.
func compiledJob(t *testing.T, layers int, d manifest.MeshDims, components ...string) *Job {
	m := compiledManifest(layers, d, components...)
	m.Derive()
	j, err := New(m)
	require.NoError(t, err)
	return j
}

func compiledManifest(layers int, d manifest.MeshDims, components ...string) *manifest.Manifest {
	dp := d.DPReplicate * d.DPShard
	return &manifest.Manifest{
		Schema: manifest.SchemaName,
		Model: &manifest.Model{Family: "llama3", Flavor: "custom", Config: manifest.ModelConfig{
			Dim: 64, NumLayers: layers, NumHeads: 4, NumKVHeads: 2, HeadDim: 16, FFNHidden: 96, VocabSize: 250, MaxSeqLen: 16, NormEps: 1e-5, RopeTheta: 500000,
		}},
		Mesh: &manifest.Mesh{WorldSize: dp * d.CP * d.TP, Dims: d, Order: []string{"pp", "dp_replicate", "dp_shard", "cp", "tp"}},
		Training: &manifest.Training{SeqLen: 16, LocalBatchSize: 8 / dp, GlobalBatchSize: 8, GradAccumSteps: 1, Steps: 1,
			DType: "float32", MixedPrecisionParam: "bfloat16", MixedPrecisionReduce: "float32", MaxNorm: 1},
		Optimizer:   &manifest.Optimizer{Name: "AdamW", LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1},
		LRScheduler: &manifest.LRScheduler{DecayType: "linear"},
		Compile:     &manifest.Compile{Enable: true, Components: components},
	}
}

// All layers run the same kernels: more layers are more of them, not more kinds.
func TestABlockIsCompiledOnce(t *testing.T) {
	for _, d := range []manifest.MeshDims{{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, {PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2, EP: 1}} {
		few, many := compiledJob(t, 3, d, "model"), compiledJob(t, 9, d, "model")
		for _, j := range []*Job{few, many} {
			_, err := j.Program(0)
			require.NoError(t, err)
		}
		require.Equal(t, len(few.Fusion().Kinds), len(many.Fusion().Kinds))
		require.Greater(t, many.Fusion().Kernels, 2*few.Fusion().Kernels)
	}
}

// Nothing of the size of the logits is float32 in a plan, on the device or the host.
func TestWideLogitsNeverExist(t *testing.T) {
	j := compiledJob(t, 2, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, "model", "loss")
	p, err := j.Program(0)
	require.NoError(t, err)
	require.False(t, p.LossApart)
	logits := j.Rows * j.Manifest.Training.SeqLen * j.Manifest.Model.Config.VocabSize
	seen := 0
	for _, s := range p.Slots {
		if s.NumElements() == logits && s.Class == plan.Arena {
			seen++
			require.Equal(t, dtype.BFloat16, s.DType, s.FQN)
		}
	}
	require.Positive(t, seen)
}

// The model and the loss are components of their own.
func TestComponents(t *testing.T) {
	d := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}
	for _, c := range []struct {
		components  []string
		model, loss bool
	}{{[]string{"model"}, true, false}, {[]string{"loss"}, false, true}, {nil, false, false}, {[]string{"model", "loss"}, true, true}} {
		j := compiledJob(t, 1, d, c.components...)
		p, err := j.Program(0)
		require.NoError(t, err)
		require.Equal(t, c.model, j.Fusion() != nil)
		require.Equal(t, c.loss, !p.LossApart)
	}
}
