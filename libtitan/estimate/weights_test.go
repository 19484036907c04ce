package estimate

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pipeline"
)

func TestFlopWeightsAddUp(t *testing.T) {
	p, err := llama3.Find("llama3-8b")
	require.NoError(t, err)
	j := &Job{Model: p.Config, SeqLen: 8192, Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}}
	sum := int64(0)
	for _, w := range j.FlopWeights() {
		sum += w
	}
	require.InEpsilon(t, p.Config.FlopsPerToken(8192), sum, 1e-4) // norms aside
	j.AC = ac(t, "selective:2")[0]
	w := j.FlopWeights()
	require.Equal(t, w[1]*4/3, w[2])
	require.Equal(t, w[1], w[3])
}

// By FLOPs no cut is slower than torchtitan's rule. llama3-405b has 126 equal layers: some stage of 32 has 4 of them
// however it is cut, and the rule's slowest has no more; 70b's head costs 1.2 layers, and the rule gives its stage too many.
func TestBalanceAgainstTheRule(t *testing.T) {
	for _, c := range []struct {
		model  string
		stages int
		ac     string
	}{{"llama3-405b", 32, "full"}, {"llama3-405b", 16, "full"}, {"llama3-8b", 8, "none"}, {"llama3-8b", 4, "none"}, {"llama3-70b", 16, "full"}} {
		p, err := llama3.Find(c.model)
		require.NoError(t, err)
		j := &Job{Model: p.Config, SeqLen: 8192, Dims: manifest.MeshDims{PP: c.stages, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, AC: ac(t, c.ac)[0]}
		w := j.FlopWeights()
		_, best, err := pipeline.Balance(p.Config.NumLayers, c.stages, pipeline.Weights{Fixed: w})
		require.NoError(t, err)
		rule, err := pipeline.Split(pipeline.Cut{NumLayers: p.Config.NumLayers, NumStages: c.stages, FirstWeight: 1, LastWeight: 1})
		require.NoError(t, err)
		weights := pipeline.StageWeights(rule, pipeline.Weights{Fixed: w})
		t.Logf("%s in %d stages, ac %s: slowest stage %.4g against %.4g flops a token: %.1f%% less; max/mean %.3f against %.3f", c.model, c.stages, c.ac,
			float64(slices.Max(best)), float64(slices.Max(weights)), 100*(1-float64(slices.Max(best))/float64(slices.Max(weights))), pipeline.Uneven(best), pipeline.Uneven(weights))
		require.LessOrEqual(t, slices.Max(best), slices.Max(weights))
	}
}
