package plan_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// embeddingGrad is the gradient of the embedding in p, and where its rows lie, nil if it has them all; both are there until the end.
func embeddingGrad(t *testing.T, p *plan.Program) (grad, rows *plan.Slot) {
	for _, s := range p.Slots {
		if s.Name != "tok_embeddings.weight" {
			continue
		}
		switch s.Class {
		case plan.Grad:
			grad = s
		case plan.Rows:
			rows = s
		default:
			continue
		}
		require.Equal(t, len(p.Steps)-1, s.Last)
	}
	return grad, rows
}

// The embedding's gradient has the rows of the step's tokens where one step makes all of it and those are fewer than the table's:
// of one rank's tokens, or of those of all ranks that leave their parts of the table where they are stored.
func TestGradsByRows(t *testing.T) {
	vocab := func(n int, set func(m *manifest.Manifest)) func(m *manifest.Manifest) {
		return func(m *manifest.Manifest) {
			m.Model.Config.VocabSize = n
			set(m)
		}
	}
	for _, c := range []struct {
		name          string
		set           func(m *manifest.Manifest)
		tokens, vocab int // of the rank; no tokens: all rows are there
	}{
		{"one rank", func(*manifest.Manifest) {}, 128, 256},
		{"float32", func(m *manifest.Manifest) { m.Training.MixedPrecisionParam = "float32" }, 128, 256},
		{"float8", inFloat8("rowwise"), 128, 256},
		{"compiled", func(m *manifest.Manifest) {
			m.Compile = &manifest.Compile{Enable: true, Components: []string{"model", "loss"}}
		}, 128, 256},
		{"activation checkpointing", func(m *manifest.Manifest) { m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: "full"} }, 128, 256},
		{"130 rows", vocab(130, func(*manifest.Manifest) {}), 0, 130},
		{"131 rows", vocab(131, func(*manifest.Manifest) {}), 128, 131},
		{"tp", func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }, 0, 128},
		{"tp, more rows", vocab(512, func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }), 128, 256},
		{"tied", func(m *manifest.Manifest) { m.Model.Config.Tied = true }, 0, 256},
		{"accumulation", func(m *manifest.Manifest) { m.Training.GradAccumSteps = 2 }, 0, 256},
		{"dp_replicate", func(m *manifest.Manifest) { m.Mesh.Dims.DPReplicate = 2 }, 0, 256},
		{"dp_shard", func(m *manifest.Manifest) { m.Mesh.Dims.DPShard = 2 }, 0, 128},
		{"dp_shard, rows travel", vocab(3000, func(m *manifest.Manifest) { m.Mesh.Dims.DPShard = 2 }), 128, 1500},
		{"cp", func(m *manifest.Manifest) { m.Mesh.Dims.CP = 2 }, 0, 128},
		{"pp, one microbatch", vocab(3000, pipelined(1)), 0, 3000},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := smallJob(t, c.set)
			for _, arrange := range []func(p *plan.Program){(*plan.Program).ForGPU, (*plan.Program).ForCache} {
				p, err := j.Program(0)
				require.NoError(t, err)
				arrange(p)
				grad, rows := embeddingGrad(t, p)
				require.Equal(t, dtype.Float32, grad.DType)
				if c.tokens == 0 {
					require.Nil(t, rows)
					require.Equal(t, []int{c.vocab, 64}, grad.Shape)
					continue
				}
				require.Equal(t, []int{c.tokens, 64}, grad.Shape)
				require.Equal(t, []int{c.vocab}, rows.Shape)
				require.Equal(t, dtype.Int32, rows.DType)
				require.Equal(t, c.vocab, grad.At[0].Len, "the part of the table that it is of")
			}
		})
	}
}

// A gradient by rows takes less room, in the arena and beside it.
func TestGradsByRowsTakeLess(t *testing.T) {
	j := smallJob(t, func(m *manifest.Manifest) { m.Model.Config.VocabSize = 3000 })
	all, err := j.Program(0)
	require.NoError(t, err)
	some, err := j.Program(0)
	require.NoError(t, err)
	some.GradsByRows()
	const saved = 4 * (3000*64 - 128*64 - 3000)
	require.Equal(t, plan.Measure(all).Fixed[plan.Grad]-saved, plan.Measure(some).Fixed[plan.Grad])
	require.Equal(t, fixtures(all)-saved, fixtures(some))
	all.PlaceGrads()
	some.PlaceGrads()
	require.Less(t, some.ArenaBytes, all.ArenaBytes)
}
