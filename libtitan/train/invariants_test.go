package train

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// numbers is a file of the numbers from 1 to 4000, one a line.
func numbers(t *testing.T) string {
	var text strings.Builder
	for i := range 4000 {
		fmt.Fprintln(&text, i+1)
	}
	path := filepath.Join(t.TempDir(), "text.txt")
	require.NoError(t, os.WriteFile(path, []byte(text.String()), 0o644))
	return path
}

// tinyJob trains a tiny model on numbers: 24 rows a step.
func tinyJob(t *testing.T, data string) *manifest.Manifest {
	m := referenceManifest(t)
	m.Model.Config.VocabSize, m.Model.Config.MaxSeqLen = 259, 32
	m.Training.SeqLen, m.Training.LocalBatchSize, m.Training.GlobalBatchSize, m.Training.Steps = 32, 8, 8, 10
	m.LRScheduler.WarmupSteps = 2
	m.Data = &manifest.Data{Paths: []string{data}, Tokenizer: "byte"}
	m.Derive()
	return m
}

// pipelined cuts m into the stages of a schedule on pp ranks.
func pipelined(t *testing.T, m *manifest.Manifest, pp, microbatches int, schedule string) *manifest.Manifest {
	m.Mesh.WorldSize *= pp / m.Mesh.Dims.PP
	m.Mesh.Dims.PP = pp
	ranks, err := pipeline.StageRank(schedule, pp, 0, microbatches)
	require.NoError(t, err)
	stages, err := pipeline.Split(pipeline.Cut{NumLayers: m.Model.Config.NumLayers, NumStages: len(ranks), FirstWeight: 1, LastWeight: 1})
	require.NoError(t, err)
	m.Pipeline = &manifest.Pipeline{Schedule: schedule, NumMicrobatches: microbatches}
	for i, fqns := range stages {
		m.Pipeline.Stages = append(m.Pipeline.Stages, manifest.Stage{Stage: i, PPRank: ranks[i], FQNs: fqns})
	}
	m.Derive()
	return m
}

// steps runs m and returns what its metrics say, without the times.
func steps(t *testing.T, m *manifest.Manifest) []record {
	t.Helper()
	return stepsWith(t, m, func(*Options) {})
}

// stepsWith is steps under other options.
func stepsWith(t *testing.T, m *manifest.Manifest, change func(o *Options)) []record {
	t.Helper()
	var file bytes.Buffer
	o := quiet()
	o.Metrics, o.GradNorms = &file, true
	change(&o)
	require.NoError(t, Run(context.Background(), m, o))
	return readMetrics(t, &file)
}

func readMetrics(t *testing.T, file *bytes.Buffer) (out []record) {
	dec := json.NewDecoder(file)
	for dec.More() {
		var r record
		require.NoError(t, dec.Decode(&r))
		r.DataSeconds, r.StepSeconds, r.StalledSeconds, r.TPS, r.MemoryBytes = 0, 0, 0, 0, 0
		out = append(out, r)
	}
	return out
}

// Pipelines of every depth and schedule give the bits of one rank that accumulates the same microbatches.
func TestPipelinesHaveTheBitsOfOneRank(t *testing.T) {
	data := numbers(t)
	for _, compute := range []string{"float32", "bfloat16"} {
		for _, microbatches := range []int{1, 2, 8} { // fewer than stages, too
			t.Run(fmt.Sprintf("%s/%d microbatches", compute, microbatches), func(t *testing.T) {
				job := func() *manifest.Manifest {
					m := tinyJob(t, data)
					m.Training.MixedPrecisionParam = compute
					return m
				}
				one := job()
				one.Training.LocalBatchSize, one.Training.GradAccumSteps = 8/microbatches, microbatches
				want := steps(t, one)
				require.Len(t, want, 10)
				require.Less(t, want[9].Loss, want[0].Loss)
				for _, pp := range []int{1, 2, 4} {
					for _, schedule := range []string{"GPipe", "1F1B"} {
						got := steps(t, pipelined(t, job(), pp, microbatches, schedule))
						require.Equal(t, want, got, "pp %d %s", pp, schedule)
					}
				}
			})
		}
	}
}

// Microbatches of a pipeline, accumulation steps, both, neither: the same 24 sequences, the same gradients.
func TestAccumulationAndMicrobatchesAgree(t *testing.T) {
	data := numbers(t)
	job := func(local, accum int) *manifest.Manifest {
		m := tinyJob(t, data)
		m.Training.LocalBatchSize, m.Training.GradAccumSteps, m.Training.GlobalBatchSize, m.Training.Steps = local, accum, 24, 5
		m.Derive()
		return m
	}
	want := steps(t, job(24, 1))
	for name, m := range map[string]*manifest.Manifest{
		"pp 1, accumulation 3":                  job(8, 3),
		"pp 2, microbatches 4, accumulation 3":  pipelined(t, job(8, 3), 2, 4, "1F1B"),
		"pp 2, microbatches 12, accumulation 1": pipelined(t, job(24, 1), 2, 12, "GPipe"),
	} {
		agree(t, want, steps(t, m), 1e-5, name)
	}
}

// A tied head under pp has its weight on two ranks and one gradient.
func TestTiedHeadUnderPipeline(t *testing.T) {
	data := numbers(t)
	job := func() *manifest.Manifest {
		m := tinyJob(t, data)
		m.Model.Config.Tied = true
		m.Derive()
		return m
	}
	want := steps(t, job())
	for _, pp := range []int{2, 4} {
		agree(t, want, steps(t, pipelined(t, job(), pp, 4, "1F1B")), 1e-5, fmt.Sprint("pp ", pp))
	}
}

func agree(t *testing.T, want, got []record, tolerance float64, name string) {
	t.Helper()
	require.Len(t, got, len(want), name)
	for i := range want {
		require.NotZero(t, want[i].GradNorm)
		require.InEpsilon(t, want[i].Loss, got[i].Loss, tolerance, "%s: loss of step %d", name, i+1)
		require.InEpsilon(t, want[i].GradNorm, got[i].GradNorm, tolerance, "%s: grad norm of step %d", name, i+1)
		require.Equal(t, want[i].BatchHash, got[i].BatchHash, name)
		require.Len(t, got[i].GradNorms, len(want[i].GradNorms), name)
		if i > 0 {
			continue // later steps start from weights that differ already
		}
		for fqn, n := range want[i].GradNorms {
			require.InEpsilon(t, n, got[i].GradNorms[fqn], tolerance, "%s: gradient of %s", name, fqn)
		}
	}
}

// Five steps, a save, a resume, five more: the bits of ten straight; also when the layout changes in between.
func TestResumeHasTheBitsOfAStraightRun(t *testing.T) {
	data := numbers(t)
	job := func(folder string, n int) *manifest.Manifest {
		m := tinyJob(t, data)
		m.Training.LocalBatchSize, m.Training.GradAccumSteps = 2, 4
		m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 5}
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{10}[0]
		return m
	}
	straight, resumed := t.TempDir(), t.TempDir()
	want := steps(t, job(straight, 10))
	require.Equal(t, want[:5], steps(t, job(resumed, 5)))
	m := job(resumed, 10)
	m.Training.LocalBatchSize, m.Training.GradAccumSteps = 8, 1
	require.Equal(t, want[5:], steps(t, pipelined(t, m, 4, 4, "1F1B")))
	require.Equal(t, tensorsOf(t, checkpoint.StepDir(straight, 10)), tensorsOf(t, checkpoint.StepDir(resumed, 10)))
}

// tensorsOf reads every tensor of a checkpoint whole.
func tensorsOf(t *testing.T, dir string) map[string]string {
	r, err := checkpoint.Open(dir)
	require.NoError(t, err)
	defer r.Close()
	out := map[string]string{}
	for _, it := range r.Items() {
		if it.Kind == checkpoint.KindTensor {
			buf := make([]byte, it.Bytes)
			require.NoError(t, r.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, buf))
			out[it.FQN] = string(buf)
		}
	}
	require.NotEmpty(t, out)
	return out
}
