package train

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

var oneRank = manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}

// layouts are a few meshes of every kind, and a pipeline with two stages a rank.
func layouts(t *testing.T, data string, edit func(m *manifest.Manifest)) map[string]*manifest.Manifest {
	out := map[string]*manifest.Manifest{}
	for _, d := range []manifest.MeshDims{
		{PP: 2, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, {PP: 2, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2},
		{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}, {PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 2},
		{PP: 1, DPReplicate: 1, DPShard: 1, CP: 2, TP: 2},
	} {
		m := meshJob(t, data, d, 2)
		edit(m)
		out[fmt.Sprintf("%+v", d)] = m
	}
	m := pipelined(t, meshJob(t, data, oneRank, 1), 2, 2, "Interleaved1F1B")
	edit(m)
	out["interleaved"] = m
	return out
}

// The clip's norm is the whole model's, whatever part of it a rank holds and however often a tensor is held.
func TestClippingIsOfTheWholeNorm(t *testing.T) {
	data := numbers(t)
	clip := func(m *manifest.Manifest) { m.Training.MaxNorm, m.Training.Steps = 0.1, 3 }
	one := meshJob(t, data, oneRank, 1)
	clip(one)
	want := steps(t, one)
	require.Greater(t, want[0].GradNorm, 1.0, "it clips")
	loose := meshJob(t, data, oneRank, 1)
	loose.Training.Steps = 3
	require.NotEqual(t, want[2].Loss, steps(t, loose)[2].Loss, "and the clip shows in the loss")
	for name, m := range layouts(t, data, clip) {
		agree(t, want, steps(t, m), 1e-5, name)
	}
}

// Accumulation steps times microbatches times data-parallel ranks, in any product: the same sequences, the same gradients.
func TestAccumulationOverLayouts(t *testing.T) {
	data := numbers(t)
	batch := func(accum int) func(m *manifest.Manifest) {
		return func(m *manifest.Manifest) {
			dp := m.Mesh.Dims.DPReplicate * m.Mesh.Dims.DPShard
			m.Training.GlobalBatchSize, m.Training.GradAccumSteps, m.Training.LocalBatchSize = 24, accum, 24/accum/dp
			m.Training.Steps = 3
		}
	}
	one := meshJob(t, data, oneRank, 1)
	batch(1)(one)
	want := steps(t, one)
	for name, m := range layouts(t, data, batch(3)) {
		agree(t, want, steps(t, m), 1e-5, name)
	}
}

// Ranks with 1 and 9 labels weigh 1 and 9; a rank, a microbatch or a step with none adds nothing and breaks nothing.
func TestLabelsOverDataParallelRanks(t *testing.T) {
	for _, c := range []struct {
		valid []int // labels of the rows: two a step
		steps int
	}{{[]int{1, 9}, 1}, {[]int{0, 9}, 1}, {[]int{5, 3, 0, 6, 0, 0, 4, 5}, 4}} {
		want := steps(t, maskedJob(t, c.valid, 2, 1, c.steps))
		for name, d := range map[string]manifest.MeshDims{
			"dp_shard 2":        {PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1},
			"dp_replicate 2":    {PP: 1, DPReplicate: 2, DPShard: 1, CP: 1, TP: 1},
			"dp_shard 2 x tp 2": {PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2},
		} {
			m := maskedJob(t, c.valid, 1, 1, c.steps)
			d.EP = 1
			m.Mesh.Dims, m.Mesh.WorldSize, m.Training.GlobalBatchSize = d, d.DPReplicate*d.DPShard*d.TP, 2
			m.Derive()
			got := steps(t, m)
			require.Len(t, got, c.steps)
			for i, w := range want {
				require.Equal(t, w.ValidTokens, got[i].ValidTokens, name)
				require.False(t, math.IsNaN(got[i].Loss) || math.IsInf(got[i].Loss, 0), name)
				require.InDelta(t, w.Loss, got[i].Loss, 1e-5*w.Loss, "%s: step %d", name, i+1)
				require.InDelta(t, w.GradNorm, got[i].GradNorm, 1e-5*w.GradNorm, "%s: step %d", name, i+1)
				if w.ValidTokens == 0 {
					require.Zero(t, got[i].Loss)
					require.Zero(t, got[i].GradNorm)
				}
			}
		}
	}
}

// A network of one hidden channel and a norm of two weights over four and eight ranks: most hold nothing of them. It
// trains as on one rank, and its checkpoint goes on with any number.
func TestRanksWithNothingToHold(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	job := func(shard, tp, n int, folder string) *manifest.Manifest {
		m := meshJob(t, data, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: shard, CP: 1, TP: tp}, 1)
		c := &m.Model.Config
		c.Dim, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden = 2, 1, 1, 2, 1
		m.Derive()
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{4}[0]
		m.Checkpoint = &manifest.Checkpoint{Folder: folder}
		return m
	}
	want := steps(t, job(1, 1, 4, t.TempDir()))
	require.NotZero(t, want[0].GradNorms["layers.0.feed_forward.w1.weight"])
	was := steps(t, job(4, 1, 2, folder))
	agree(t, want[:2], was, 1e-5, "four ranks")
	r, err := checkpoint.Open(checkpoint.StepDir(folder, 2))
	require.NoError(t, err)
	defer r.Close()
	for fqn, chunks := range map[string]int{"norm.weight": 2, "layers.0.feed_forward.w1.weight": 1, "lm_head.weight": 4} {
		item, ok := r.Item(fqn)
		require.True(t, ok, fqn)
		require.Len(t, item.Chunks, chunks, "%s: no chunk without an element", fqn)
	}
	saved := tensorsOf(t, checkpoint.StepDir(folder, 2))
	for _, shard := range []int{1, 2, 8} {
		require.Equal(t, saved, tensorsOf(t, savedAgain(t, job(shard, 1, 4, folder))), "over %d ranks", shard)
	}
	agree(t, want[2:], steps(t, job(8, 1, 4, folder)), 1e-5, "goes on with eight")
}

// How a model was run leaves no trace in the names that are saved, so it goes on run in another way.
func TestNamesAreTheModels(t *testing.T) {
	data := numbers(t)
	job := func(folder, ac string, d manifest.MeshDims, n int) *manifest.Manifest {
		m := meshJob(t, data, d, 2)
		m.Checkpoint = &manifest.Checkpoint{Folder: folder}
		m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: ac}
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{4}[0]
		return m
	}
	names := func(folder string, step int) (out []string) {
		r, err := checkpoint.Open(checkpoint.StepDir(folder, step))
		require.NoError(t, err)
		defer r.Close()
		for _, it := range r.Items() {
			out = append(out, it.FQN)
		}
		return out
	}
	hsdp := manifest.MeshDims{PP: 2, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}
	plain, wrapped := t.TempDir(), t.TempDir()
	want := steps(t, job(plain, "none", oneRank, 2))
	agree(t, want, steps(t, job(wrapped, "full", hsdp, 2)), 1e-5, "run in another way")
	require.Equal(t, names(plain, 2), names(wrapped, 2))
	agree(t, steps(t, job(plain, "full", hsdp, 4)), steps(t, job(wrapped, "none", oneRank, 4)), 1e-5, "and on, the ways exchanged")
}

// A rank that never comes to a step ends the others within the timeout, each with the same line: who, and in which
// collective.
func TestALateRankEndsAll(t *testing.T) {
	m := meshJob(t, numbers(t), manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, 1)
	r, err := open(m, quiet(), false)
	require.NoError(t, err)
	defer r.close()
	r.train, err = r.openData(t.Context(), m.Data.Paths, nil, true)
	require.NoError(t, err)
	defer r.train.Close()
	r.report, err = newReport(r)
	require.NoError(t, err)
	errs := make([]error, 4)
	o := comm.Options{Timeout: time.Minute, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	_ = local.RunWith(t.Context(), 4, o, func(ctx context.Context, c comm.Comm) error {
		me := c.Rank()
		k, err := r.newRank(c, true)
		if err != nil {
			return err
		}
		if _, err := k.step(ctx, ctx); err != nil {
			return err
		}
		c.SetTimeout(300 * time.Millisecond)
		if me == 3 {
			time.Sleep(time.Second)
		}
		_, errs[me] = k.step(ctx, ctx)
		return errs[me]
	})
	for me, err := range errs {
		require.ErrorContains(t, err, "rank 3 has not come after 300ms", "rank %d", me)
		require.ErrorContains(t, err, "all_reduce sum (no. ") // of the step's labels, its first collective
		require.Equal(t, errs[0], err, "one line for all")
		require.Equal(t, int(exit.Lost), exit.Code(err))
	}
}
