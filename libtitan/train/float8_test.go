package train

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
)

var float8Recipes = []string{"tensorwise", "rowwise", "rowwise_with_gw_hp"}

// float8Job is meshJob in bfloat16 with its linears, but the head, in float8.
func float8Job(t *testing.T, data, recipe string, d manifest.MeshDims) *manifest.Manifest {
	m := meshJob(t, data, d, 4)
	m.Training.MixedPrecisionParam, m.Training.Steps = "bfloat16", 2
	m.Model.Config.FFNHidden = 64
	m.Float8 = manifest.NewFloat8(recipe)
	m.Derive()
	return m
}

// On every mesh float8 trains as on one rank, as bfloat16 does, though activations have other scales where ranks have other
// rows. What the backward computes again changes no bit, nor does a second run.
func TestFloat8OnMeshes(t *testing.T) {
	data := numbers(t)
	for k, recipe := range float8Recipes {
		want := steps(t, float8Job(t, data, recipe, oneRank))
		for i, d := range []manifest.MeshDims{
			{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}, {PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2}, {PP: 1, DPReplicate: 1, DPShard: 1, CP: 2, TP: 1},
			{PP: 2, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, {PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}, {PP: 1, DPReplicate: 1, DPShard: 2, CP: 2, TP: 2},
			{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, {PP: 2, DPReplicate: 1, DPShard: 1, CP: 2, TP: 2},
		} {
			name := fmt.Sprintf("%s %+v", recipe, d)
			got := steps(t, float8Job(t, data, recipe, d))
			agree(t, want, got, 0.06, name) // half a step of e5m2, relative to what it rounds
			for step := range want {
				require.InEpsilon(t, want[step].Loss, got[step].Loss, 1e-3, name)
				require.InEpsilon(t, want[step].GradNorm, got[step].GradNorm, 5e-3, name)
			}
			for j, ac := range []manifest.ActivationCheckpoint{{Mode: "full"}, {Mode: "selective", Option: "op"}, {Mode: "selective", Option: "cheap"}} {
				if !wholeMatrix && (i+j+k)%2 == 0 {
					continue
				}
				m := float8Job(t, data, recipe, d)
				m.ActivationCheckpoint = &ac
				require.Equal(t, got, steps(t, m), "%s, activation checkpointing %+v", name, ac)
			}
		}
	}
}

// Microbatches have their own scales wherever they are computed: pipelines have the bits of one rank that accumulates.
func TestFloat8SchedulesHaveTheBitsOfOneRank(t *testing.T) {
	data := numbers(t)
	for _, recipe := range float8Recipes {
		alone := float8Job(t, data, recipe, oneRank)
		alone.Training.LocalBatchSize, alone.Training.GradAccumSteps = 1, 8
		want := steps(t, alone)
		for _, schedule := range []string{"1F1B", "InterleavedZeroBubble", "ZBVZeroBubble"} {
			m := pipelined(t, float8Job(t, data, recipe, oneRank), 2, 8, schedule)
			require.Equal(t, want, steps(t, m), "%s %s", recipe, schedule)
		}
	}
}

// Layers that a filter names are those of a run without float8, to the bit.
func TestFloat8FilterLeavesLayersAsTheyWere(t *testing.T) {
	data := numbers(t)
	m := float8Job(t, data, "tensorwise", oneRank)
	m.Float8.FilterFQNs = []string{"lm_head", "attention", "feed_forward"}
	got := steps(t, m)
	m.Float8 = nil
	require.Equal(t, steps(t, m), got)
	require.NotEqual(t, got[1].Loss, steps(t, float8Job(t, data, "tensorwise", oneRank))[1].Loss, "and float8 shows in the loss")
}

// The loss after 50 steps is within 1% of bfloat16's.
func TestFloat8Learns(t *testing.T) {
	data := numbers(t)
	loss := func(recipe string) float64 {
		m := tinyJob(t, data)
		m.Training.MixedPrecisionParam, m.Training.Steps = "bfloat16", 50
		m.Float8 = manifest.NewFloat8(recipe)
		all := steps(t, m)
		require.Less(t, all[49].Loss, 0.7*all[0].Loss, "it learns")
		return all[49].Loss
	}
	want := loss("off")
	for _, recipe := range float8Recipes {
		got := loss(recipe)
		t.Logf("%s: %.5f, bfloat16: %.5f", recipe, got, want)
		require.InEpsilon(t, want, got, 0.01, recipe)
	}
}
