package train

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// What is excluded begins afresh, the rest goes on.
func TestExcludeFromLoading(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	straight := steps(t, savingJob(t, data, 6, manifest.Checkpoint{Folder: folder, Interval: 3}))
	resume := func(parts ...string) record {
		m := savingJob(t, data, 6, manifest.Checkpoint{Folder: folder, LoadStep: &[]int{3}[0], LoadOnly: true, ExcludeFromLoading: parts})
		return steps(t, m)[0]
	}
	want := straight[3]
	require.Equal(t, want, resume())

	fresh := resume("optimizer", "lr_scheduler")
	require.Equal(t, want.Loss, fresh.Loss)
	require.Equal(t, 4, fresh.Step)
	require.Equal(t, straight[0].LR, fresh.LR)
	require.Equal(t, straight[0].LR, resume("lr_scheduler").LR)

	fresh = resume("dataloader")
	require.Equal(t, straight[0].BatchHash, fresh.BatchHash)
	require.Equal(t, want.LR, fresh.LR)

	fresh = resume("train_state")
	require.Equal(t, want.BatchHash, fresh.BatchHash)
	require.Equal(t, want.LR, fresh.LR)
	require.Equal(t, []any{1, straight[0].TokensSeen}, []any{fresh.Step, fresh.TokensSeen})
}

// Moments that begin afresh are corrected for their own age, and that age is saved with them.
func TestFreshMomentsAreNew(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	steps(t, savingJob(t, data, 3, manifest.Checkpoint{Folder: folder, Interval: 3}))
	c := manifest.Checkpoint{Folder: folder, Interval: 1, ExcludeFromLoading: []string{"optimizer", "lr_scheduler", "dataloader"}}
	steps(t, savingJob(t, data, 4, c))

	base := manifest.Checkpoint{Folder: t.TempDir(), InitialLoadPath: checkpoint.StepDir(folder, 3)}
	steps(t, savingJob(t, data, 1, base))
	require.Equal(t, tensorsOf(t, checkpoint.StepDir(base.Folder, 1)), tensorsOf(t, checkpoint.StepDir(folder, 4)), "the count of updates is a tensor too")

	c.ExcludeFromLoading = nil
	on := steps(t, savingJob(t, data, 6, c))
	base.Folder, base.InitialLoadPath = filepath.Dir(checkpoint.StepDir(base.Folder, 1)), ""
	same := steps(t, savingJob(t, data, 3, base))
	for i := range same {
		require.Equal(t, same[i].Loss, on[i].Loss)
		require.Equal(t, same[i].LR, on[i].LR)
	}
}

// torchtitan's own full state, of four FSDP ranks, is gone on from: weights, moments, their count, the step.
func TestResumeOfTorchtitansState(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.CopyFS(checkpoint.StepDir(folder, 2), os.DirFS("../../testdata/dcp/f4_titan_full_state/ckpt")))
	m := tinyJob(t, numbers(t))
	c := &m.Model.Config
	c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden, c.VocabSize = 32, 4, 4, 2, 8, 86, 64
	m.Derive()
	m.Training.Steps = 4
	m.Checkpoint = &manifest.Checkpoint{Folder: folder}
	m.Data.Paths = []string{ids(t, c.VocabSize)}
	again := tensorsOf(t, savedAgain(t, m))
	for fqn, bytes := range tensorsOf(t, checkpoint.StepDir(folder, 2)) {
		require.Equal(t, bytes, again[strings.ReplaceAll(fqn, "output.weight", "lm_head.weight")], fqn)
	}

	got := steps(t, m)
	require.Equal(t, 3, got[0].Step)
	require.Greater(t, got[0].TokensSeen, int64(123456), "its own count is gone on from")
	require.Equal(t, "\x00\x00\x80\x40", tensorsOf(t, checkpoint.StepDir(folder, 4))["optimizer.state.norm.weight.step"], "4 updates: 2 of PyTorch's, 2 of ours")
}

// ids is a file of rows of token ids below vocab.
func ids(t *testing.T, vocab int) string {
	var b strings.Builder
	for row := range 200 {
		var words []string
		for i := range 33 {
			words = append(words, fmt.Sprint((7*i+13*row)%vocab))
		}
		fmt.Fprintf(&b, "{\"input_ids\": [%s]}\n", strings.Join(words, ","))
	}
	path := filepath.Join(t.TempDir(), "ids.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(b.String()), 0o644))
	return path
}

// Which step a run starts from, and what it says about it.
func TestWhichStepIsLoaded(t *testing.T) {
	data := numbers(t)
	dir := t.TempDir()
	folder, base := filepath.Join(dir, "ck"), filepath.Join(dir, "base")
	steps(t, savingJob(t, data, 10, manifest.Checkpoint{Folder: folder, Interval: 10}))
	require.NoError(t, os.Rename(checkpoint.StepDir(folder, 10), base))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	for _, name := range []string{"step-9", "step-10", "step-30.tmp", "step-5-mybackup", "step-07"} {
		require.NoError(t, os.CopyFS(filepath.Join(folder, name), os.DirFS(base)))
	}
	require.NoError(t, os.Mkdir(filepath.Join(folder, "step-20"), 0o755))
	n := func(x int) *int { return &x }
	for name, c := range map[string]struct {
		manifest.Checkpoint
		step int // the first one trained
		says []string
		err  string
	}{
		"a step that is not there": {manifest.Checkpoint{Folder: folder, LoadStep: n(15)}, 0, nil, "no step 15; there are steps 9, 10"},
		"an incomplete step":       {manifest.Checkpoint{Folder: folder, LoadStep: n(20)}, 0, nil, "step-20: incomplete"},
		"the newest":               {manifest.Checkpoint{Folder: folder}, 11, []string{"step-20 is incomplete", "step-10: its state is loaded, step 10 is done"}, ""},
		"torchtitan's newest":      {manifest.Checkpoint{Folder: folder, LoadStep: n(-1)}, 11, []string{"step-10: its state is loaded"}, ""},
		"a base beside steps":      {manifest.Checkpoint{Folder: folder, InitialLoadPath: base}, 11, []string{"initial_load_path " + base + " is ignored"}, ""},
		"an empty folder":          {manifest.Checkpoint{Folder: filepath.Join(dir, "empty"), InitialLoadPath: base}, 1, []string{base + ": weights only (step 0)"}, ""},
		"no folder":                {manifest.Checkpoint{Folder: filepath.Join(dir, "new"), InitialLoadPath: base}, 1, []string{base + ": weights only (step 0)"}, ""},
		"no base":                  {manifest.Checkpoint{Folder: filepath.Join(dir, "new"), InitialLoadPath: filepath.Join(dir, "nowhere")}, 0, nil, "nowhere"},
		"a step of no folder":      {manifest.Checkpoint{LoadStep: n(15)}, 0, nil, "--load-step 15: of which folder?"},
		"nothing":                  {manifest.Checkpoint{Folder: filepath.Join(dir, "new")}, 1, []string{"no checkpoint: parameters start from the seed"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c.LoadOnly = true
			m := savingJob(t, data, 11, c.Checkpoint)
			m.LRScheduler.TotalSteps = n(11)
			var log, metrics bytes.Buffer
			o := quiet()
			o.Log, o.Metrics = slog.New(slog.NewTextHandler(&log, nil)), &metrics
			err := Run(context.Background(), m, o)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Contains(t, []int{int(exit.Input), int(exit.Usage)}, exit.Code(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.step, readMetrics(t, &metrics)[0].Step)
			for _, s := range c.says {
				require.Contains(t, log.String(), s)
			}
		})
	}
}

// A step of another model is refused with the first tensors that do not fit, and its folder stays as it was.
func TestStepOfAnotherModel(t *testing.T) {
	data := numbers(t)
	folder := t.TempDir()
	m := savingJob(t, data, 1, manifest.Checkpoint{Folder: folder, Interval: 1})
	steps(t, m)
	before := tensorsOf(t, checkpoint.StepDir(folder, 1))
	for name, c := range map[string]struct {
		edit func(c *manifest.ModelConfig)
		want []string
	}{
		"vocabulary": {func(c *manifest.ModelConfig) { c.VocabSize = 261 }, []string{
			"tok_embeddings.weight has shape [259 64], the model's [261 64]; optimizer.state.tok_embeddings.weight.exp_avg has",
			" and 3 more: choose another --checkpoint-dir, or go on with the manifest that it was trained with"}},
		"as many elements": {func(c *manifest.ModelConfig) { c.Dim, c.FFNHidden, c.HeadDim = 96, 64, 16 }, []string{
			"tok_embeddings.weight has shape [259 64], the model's [259 96]; "}},
		"more layers": {func(c *manifest.ModelConfig) { c.NumLayers = 5 }, []string{"missing: layers.4.attention.wq.weight, ", " and 24 more: choose another"}},
	} {
		m := savingJob(t, data, 3, manifest.Checkpoint{Folder: folder, Interval: 1})
		c.edit(&m.Model.Config)
		m.Derive()
		err := Run(context.Background(), m, quiet())
		require.Equal(t, int(exit.Input), exit.Code(err), name)
		for _, want := range c.want {
			require.ErrorContains(t, err, want, name)
		}
		require.Equal(t, []string{"step-1"}, stepFolders(t, folder))
		require.Equal(t, before, tensorsOf(t, checkpoint.StepDir(folder, 1)))
	}
}

// Ten documents of different lengths: whatever the mesh that goes on, its batches are those of an uninterrupted run.
func TestDataGoesOnWithAnotherNumberOfRanks(t *testing.T) {
	var docs strings.Builder
	for i := range 10 {
		fmt.Fprintln(&docs, strings.Repeat(fmt.Sprintf("document %d. ", i), 3+5*i))
	}
	path := filepath.Join(t.TempDir(), "docs.txt")
	require.NoError(t, os.WriteFile(path, []byte(docs.String()), 0o644))
	job := func(folder string, n int, d manifest.MeshDims) *manifest.Manifest {
		m := meshJob(t, path, d, 1)
		m.Training.Steps = n
		m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 3}
		return m
	}
	dp := func(n, tp int) manifest.MeshDims {
		return manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: n, CP: 1, TP: tp}
	}
	want := steps(t, job(t.TempDir(), 6, dp(4, 1)))
	for _, d := range []manifest.MeshDims{dp(4, 1), dp(2, 1), dp(8, 1), dp(1, 1), dp(2, 2)} {
		folder := t.TempDir()
		steps(t, job(folder, 3, dp(4, 1)))
		got := steps(t, job(folder, 6, d))
		require.Len(t, got, 3)
		for i, s := range got {
			require.Equal(t, want[3+i].BatchHash, s.BatchHash, "%+v step %d", d, s.Step)
			require.InEpsilon(t, want[3+i].Loss, s.Loss, 1e-5)
		}
	}
}
