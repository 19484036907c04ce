package train

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/data"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
)

// maskedRows writes documents of exactly one row of 10 positions; row i has valid[i] labels.
func maskedRows(t *testing.T, valid []int) string {
	path := filepath.Join(t.TempDir(), "rows.jsonl")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	for row, n := range valid {
		ids, labels := make([]int, 11), make([]int, 11)
		for i := range ids {
			ids[i], labels[i] = (7*i+13*row)%200+1, int(data.Ignored)
			if i > 0 && i <= n {
				labels[i] = ids[i]
			}
		}
		require.NoError(t, json.NewEncoder(f).Encode(map[string]any{"input_ids": ids, "labels": labels}))
	}
	return path
}

// maskedJob takes the rows in order, local of them a microbatch.
func maskedJob(t *testing.T, valid []int, local, accum, n int) *manifest.Manifest {
	m := tinyJob(t, maskedRows(t, valid))
	m.Data.Sequential = true
	m.Training.SeqLen, m.Training.LocalBatchSize, m.Training.GradAccumSteps, m.Training.Steps = 10, local, accum, n
	m.Training.GlobalBatchSize = local * accum
	m.Derive()
	return m
}

// The loss is a mean over labels, not a mean of means: rows with 1 and 9 labels weigh 1 and 9.
func TestLossIsAMeanOverLabels(t *testing.T) {
	valid := []int{1, 9}
	together := steps(t, maskedJob(t, valid, 2, 1, 1))[0]
	apart := steps(t, maskedJob(t, valid, 1, 2, 1))[0]
	first := steps(t, maskedJob(t, valid[:1], 1, 1, 1))[0]
	require.Equal(t, 10, together.ValidTokens)
	require.InEpsilon(t, together.Loss, apart.Loss, 1e-6)
	for fqn, n := range together.GradNorms {
		require.InEpsilon(t, n, apart.GradNorms[fqn], 1e-6, fqn)
	}
	second := (10*together.Loss - first.Loss) / 9 // the mean of row two's labels
	require.Greater(t, math.Abs((first.Loss+second)/2-together.Loss), 1e-3, "the rows' means differ, so a mean of means would show")
}

// A microbatch without labels adds nothing; a step without any changes nothing but by weight decay.
func TestNothingToLearnFrom(t *testing.T) {
	with := steps(t, maskedJob(t, []int{0, 9}, 1, 2, 1))[0]
	without := steps(t, maskedJob(t, []int{9, 0}, 1, 2, 1))[0]
	require.Equal(t, 9, with.ValidTokens)
	require.Equal(t, 9, without.ValidTokens)
	require.False(t, math.IsNaN(with.Loss) || math.IsNaN(without.Loss))

	m := maskedJob(t, []int{5, 0, 5}, 1, 1, 3)
	m.Optimizer.WeightDecay = 0
	m.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir(), Interval: 1}
	got := steps(t, m)
	require.Zero(t, got[1].Loss)
	require.Zero(t, got[1].GradNorm)
	require.Equal(t, 0, got[1].ValidTokens)
	require.Equal(t, int64(10), got[2].TokensSeen)
	for _, r := range got {
		require.False(t, math.IsNaN(r.Loss) || math.IsInf(r.Loss, 0), "step %d", r.Step)
	}
	require.NotZero(t, got[2].LR)

	// No labels at all: the moments are zero too, so not a bit of the weights moves.
	m = maskedJob(t, []int{0, 0}, 1, 1, 2)
	m.Optimizer.WeightDecay = 0
	m.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir(), Interval: 1}
	steps(t, m)
	require.Equal(t, tensorsOf(t, checkpoint.StepDir(m.Checkpoint.Folder, 1))["norm.weight"], tensorsOf(t, checkpoint.StepDir(m.Checkpoint.Folder, 2))["norm.weight"])
}

// One infinite weight stops the run in its step: nothing is updated, nothing is saved, what was saved stays.
func TestNonFiniteStepStopsBeforeTheUpdate(t *testing.T) {
	for _, pp := range []int{1, 2, 4} {
		t.Run(fmt.Sprint("pp ", pp), func(t *testing.T) {
			m := tinyJob(t, numbers(t))
			m.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir(), Interval: 1}
			m.Training.Steps = 2
			steps(t, m)

			// Poison step 2 in a copy of it that becomes step 3.
			poisoned := checkpoint.StepDir(m.Checkpoint.Folder, 3)
			poison(t, checkpoint.StepDir(m.Checkpoint.Folder, 2), poisoned, "layers.2.feed_forward.w2.weight")
			m.Training.Steps = 10
			if pp > 1 {
				pipelined(t, m, pp, 4, "1F1B")
			}
			err := Run(context.Background(), m, quiet())
			require.Equal(t, int(exit.No), exit.Code(err))
			require.ErrorContains(t, err, "step 3: loss")
			require.ErrorContains(t, err, "the parameter of layers.2.feed_forward.w2.weight")
			require.NoDirExists(t, checkpoint.StepDir(m.Checkpoint.Folder, 4))
			require.DirExists(t, checkpoint.StepDir(m.Checkpoint.Folder, 2))
		})
	}
}

// poison copies a checkpoint, with an infinity in the first element of fqn.
func poison(t *testing.T, from, to, fqn string) {
	copyStep(t, from, to, func(s *checkpoint.State) {
		for i := range s.Tensors {
			if fill := s.Tensors[i].Chunks[0].Fill; s.Tensors[i].FQN == fqn {
				s.Tensors[i].Chunks[0].Fill = func(dst []byte, off int64) error {
					err := fill(dst, off)
					if off == 0 {
						copy(dst, []byte{0, 0, 0x80, 0x7f})
					}
					return err
				}
			}
		}
	})
}

// copyStep copies a checkpoint, edited.
func copyStep(t *testing.T, from, to string, edit func(s *checkpoint.State)) {
	r, err := checkpoint.Open(from)
	require.NoError(t, err)
	defer r.Close()
	var s checkpoint.State
	for _, it := range r.Items() {
		if it.Kind == checkpoint.KindBytes {
			v, err := r.Object(it.FQN)
			require.NoError(t, err)
			s.Objects = append(s.Objects, checkpoint.Object{FQN: it.FQN, Path: it.Path, Value: v})
			continue
		}
		buf := make([]byte, it.Bytes)
		require.NoError(t, r.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, buf))
		s.Tensors = append(s.Tensors, checkpoint.Tensor{FQN: it.FQN, Path: it.Path, DType: it.DType, Shape: it.Shape,
			Chunks: checkpoint.Whole(it.Shape, func(dst []byte, off int64) error { copy(dst, buf[off:]); return nil })})
	}
	edit(&s)
	require.NoError(t, checkpoint.Write(context.Background(), to, s, checkpoint.WriteOptions{}))
}

// A seed file, weights made in place, and a pipeline that loads its part of the seed: one start, and what is saved
// before any step are the seed's bytes.
func TestEveryLayoutStartsFromTheSeedsBits(t *testing.T) {
	data := numbers(t)
	m := tinyJob(t, data)
	job, err := parallel.New(m)
	require.NoError(t, err)
	seedDir := filepath.Join(t.TempDir(), "seed")
	state, err := SeedState(job.Params, m.Training.Seed, Philox, dtype.Float32, 3)
	require.NoError(t, err)
	require.NoError(t, checkpoint.Write(context.Background(), seedDir, state, checkpoint.WriteOptions{}))
	seed := tensorsOf(t, seedDir)

	want := steps(t, m) // in place
	for _, pp := range []int{1, 2, 4} {
		m := tinyJob(t, data)
		m.Training.LocalBatchSize, m.Training.GradAccumSteps = 8, 1
		m.Checkpoint = &manifest.Checkpoint{InitialLoadPath: seedDir}
		if pp > 1 {
			pipelined(t, m, pp, 1, "GPipe")
		}
		require.Equal(t, want, steps(t, m), "pp %d", pp)

		// lr 0, no decay: what is saved is what was loaded.
		m.Optimizer.LR, m.Training.Steps = 0, 1
		m.Checkpoint.Folder = t.TempDir()
		steps(t, m)
		saved := tensorsOf(t, checkpoint.StepDir(m.Checkpoint.Folder, 1))
		for fqn, bytes := range seed {
			require.Equal(t, bytes, saved[fqn], "pp %d %s", pp, fqn)
		}
	}
}

// The loss of a checkpoint is the same in a new process as before it was saved: nothing that matters is outside it.
func TestEvaluationSurvivesASave(t *testing.T) {
	for _, compute := range []string{"float32", "bfloat16"} {
		m := tinyJob(t, numbers(t))
		m.Training.MixedPrecisionParam, m.Training.Steps = compute, 20
		m.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir()}
		m.Data.ValidationPaths, m.Data.ValidationInterval, m.Data.ValidationSteps = m.Data.Paths, 20, 3
		var during float64
		r := recordValidation(t, m)
		during = r.Loss
		after, err := Eval(context.Background(), m, 3, quiet())
		require.NoError(t, err)
		require.Equal(t, Evaluation{Step: 20, Loss: during, Tokens: r.Tokens}, after)
		require.Less(t, after.Loss, 4.8, "a model that lost its rotary table would be near ln(259) = 5.6")
	}
}

// recordValidation runs m and returns its last validation.
func recordValidation(t *testing.T, m *manifest.Manifest, change ...func(o *Options)) (v validated) {
	path := filepath.Join(t.TempDir(), "metrics")
	f, err := os.Create(path)
	require.NoError(t, err)
	defer f.Close()
	o := quiet()
	o.Metrics = f
	for _, c := range change {
		c(&o)
	}
	require.NoError(t, Run(context.Background(), m, o))
	_, err = f.Seek(0, 0)
	require.NoError(t, err)
	for dec := json.NewDecoder(f); dec.More(); {
		require.NoError(t, dec.Decode(&v))
	}
	return v
}

// What a checkpoint holds beyond the model is another model's, and is not dropped without a word.
func TestTensorsWithoutAPlaceAreRefused(t *testing.T) {
	data := numbers(t)
	deep := tinyJob(t, data)
	deep.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir()}
	deep.Training.Steps = 1
	steps(t, deep)
	for name, edit := range map[string]func(m *manifest.Manifest){
		"layers.3.": func(m *manifest.Manifest) { m.Model.Config.NumLayers = 3 },
		"lm_head.":  func(m *manifest.Manifest) { m.Model.Config.Tied = true },
	} {
		m := tinyJob(t, data)
		m.Checkpoint = deep.Checkpoint
		edit(m)
		m.Derive()
		err := Run(context.Background(), m, quiet())
		require.ErrorContains(t, err, "no place for")
		require.ErrorContains(t, err, name)
		require.Equal(t, int(exit.Input), exit.Code(err))
		_, err = Eval(context.Background(), m, 1, quiet())
		require.ErrorContains(t, err, "no place for")
	}
}
