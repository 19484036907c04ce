package train

import (
	"cmp"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/checkpoint"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pipeline"
)

// compiled is m with its elementwise work fused.
func compiled(m *manifest.Manifest) *manifest.Manifest {
	m.Compile = &manifest.Compile{Enable: true, Components: []string{"model", "loss"}}
	return m
}

// fuses requires that m's first stage has fused kernels.
func fuses(t *testing.T, m *manifest.Manifest) {
	job, err := parallel.New(m)
	require.NoError(t, err)
	_, err = job.Program(0)
	require.NoError(t, err)
	require.Greater(t, job.Fusion().Nodes, job.Fusion().Kernels)
}

// A fused program trains as the separate kernels do, under every kind of parallelism, with and without activation
// checkpointing, and with float8 emulated: in float32 bit for bit; in bfloat16, where what a fused kernel does not store it does
// not round, to 2e-3.
func TestCompiledIsAsNot(t *testing.T) {
	data := numbers(t)
	for i, c := range []struct {
		dims    manifest.MeshDims
		ac      string
		float8  string
		compute string
	}{
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, ac: "full"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}, ac: "selective:op"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, ac: "full"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 2, TP: 2}},
		{dims: manifest.MeshDims{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, ac: "selective:2"},
		{dims: manifest.MeshDims{PP: 4, DPReplicate: 1, DPShard: 1, CP: 2, TP: 1}},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, float8: "rowwise"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, ac: "selective:cheap", float8: "tensorwise"},
		{dims: manifest.MeshDims{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, ac: "selective:cheap"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, ac: "full", float8: "tensorwise"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, float8: "rowwise", compute: "bfloat16"},
		{dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, ac: "full", float8: "tensorwise", compute: "bfloat16"},
	} {
		t.Run(fmt.Sprintf("%d_%+v", i, c), func(t *testing.T) {
			job := func() *manifest.Manifest {
				m := meshJob(t, data, c.dims, 8/(c.dims.DPReplicate*c.dims.DPShard))
				if c.float8 != "" {
					m = float8Job(t, data, c.float8, c.dims)
				}
				if c.ac != "" {
					ac, err := manifest.ParseActivationCheckpoint(c.ac)
					require.NoError(t, err)
					m.ActivationCheckpoint = ac
				}
				m.Training.MixedPrecisionParam, m.Training.Steps = cmp.Or(c.compute, "float32"), 2
				return m
			}
			fuses(t, compiled(job()))
			want, got := steps(t, job()), steps(t, compiled(job()))
			require.NotEmpty(t, want[0].GradNorms)
			if c.compute == "" {
				require.Equal(t, want, got)
				return
			}
			agree(t, want[:1], got[:1], 2e-3, "fused")
			require.InEpsilon(t, want[1].Loss, got[1].Loss, 2e-2)
		})
	}
}

// In float32 a random job fused has the bits of the same job not fused: the losses, each parameter's gradient, and what they
// leave in the weights and the optimizer.
func TestFusingChangesNoBit(t *testing.T) {
	data := numbers(t)
	count := 12
	if wholeMatrix {
		count = 100
	}
	for i := range count {
		c := rapid.Custom(drawJob).Example(i)
		t.Run(fmt.Sprintf("%d_%+v", i, c), func(t *testing.T) {
			run := func(m *manifest.Manifest) ([]record, map[string]string) {
				m.Checkpoint = &manifest.Checkpoint{Folder: t.TempDir()}
				return steps(t, m), tensorsOf(t, checkpoint.StepDir(m.Checkpoint.Folder, m.Training.Steps))
			}
			fuses(t, compiled(c.job(t, data)))
			want, left := run(c.job(t, data))
			got, same := run(compiled(c.job(t, data)))
			require.Equal(t, want, got)
			require.Len(t, same, len(left))
			for fqn, bytes := range left {
				require.True(t, same[fqn] == bytes, fqn)
			}
		})
	}
}

// drawnJob is a small model, a mesh of up to 8 ranks and how it is run there.
type drawnJob struct {
	float8, schedule, ac      string
	dims                      manifest.MeshDims
	layers, dim, hidden, rows int
	tied, ring                bool
}

func drawJob(t *rapid.T) drawnJob {
	widths := rapid.SampledFrom([]int{16, 30, 32, 48})
	return drawnJob{
		float8:   rapid.SampledFrom(append(slices.Clone(float8Recipes), "off")).Draw(t, "float8"),
		schedule: rapid.SampledFrom(pipeline.Names()).Draw(t, "schedule"),
		ac:       rapid.SampledFrom([]string{"none", "full", "selective:op", "selective:cheap", "selective:2"}).Draw(t, "activation checkpointing"),
		dims:     rapid.SampledFrom(meshes()).Draw(t, "mesh"),
		layers:   rapid.IntRange(1, 2).Draw(t, "layers of a stage"),
		dim:      widths.Draw(t, "dim"), hidden: widths.Draw(t, "hidden"),
		rows: rapid.IntRange(2, 3).Draw(t, "rows of a microbatch"),
		tied: rapid.Bool().Draw(t, "tied"), ring: rapid.Bool().Draw(t, "ring"),
	}
}

func (c drawnJob) job(t *testing.T, data string) *manifest.Manifest {
	alone := c.dims
	alone.PP = 1
	m := meshJob(t, data, alone, 1)
	ac, err := manifest.ParseActivationCheckpoint(c.ac)
	require.NoError(t, err)
	m.ActivationCheckpoint, m.Float8 = ac, manifest.NewFloat8(c.float8)
	if c.ring && c.dims.CP > 1 {
		m.Mesh.CPRotate = "ring"
	}
	microbatches := 2 * c.dims.PP
	m.Training.Steps, m.Training.LocalBatchSize = 2, c.rows*microbatches
	m.Training.GlobalBatchSize = m.Training.LocalBatchSize * c.dims.DPReplicate * c.dims.DPShard
	k := &m.Model.Config
	k.Dim, k.FFNHidden, k.NumLayers, k.Tied = c.dim, c.hidden, c.layers, c.tied
	m.Derive()
	if c.dims.PP > 1 {
		k.NumLayers *= 2 * c.dims.PP
		pipelined(t, m, c.dims.PP, microbatches, c.schedule)
	}
	return m
}

// On a GPU, a fused program trains as the separate kernels do on the host.
func TestGPUCompiledTrainsAsTheCPU(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, c := range []struct {
		compute   string
		ac        string
		tolerance float64
	}{{"float32", "none", 1e-5}, {"float32", "full", 1e-5}, {"bfloat16", "none", 1e-2}, {"bfloat16", "selective:op", 1e-2}, {"bfloat16", "selective:cheap", 1e-2}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			job := func() *manifest.Manifest {
				m := tinyJob(t, data)
				m.Training.MixedPrecisionParam = c.compute
				ac, err := manifest.ParseActivationCheckpoint(c.ac)
				require.NoError(t, err)
				m.ActivationCheckpoint = ac
				return m
			}
			agree(t, steps(t, job()), onGPU(t, compiled(job())), c.tolerance, "fused on the gpu")
		})
	}
}
