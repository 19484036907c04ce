package train

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
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

// A fused program trains as the separate kernels do: in float32 to 1e-6 in the first step's loss and in each parameter's
// gradient; under every kind of parallelism, with and without activation checkpointing, and with float8 emulated.
func TestCompiledIsAsNot(t *testing.T) {
	data := numbers(t)
	for i, c := range []struct {
		dims   manifest.MeshDims
		ac     string
		float8 string
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
				m.Training.Steps = 2
				return m
			}
			fuses(t, compiled(job()))
			norms := func(o *Options) { o.GradNorms = true }
			want, got := stepsWith(t, job(), norms), stepsWith(t, compiled(job()), norms)
			require.InEpsilon(t, want[0].Loss, got[0].Loss, 1e-6)
			tolerance := 1e-6
			if c.float8 != "" {
				tolerance = 2e-3 // a value on the edge of two float8 steps goes to the other
			}
			require.NotEmpty(t, want[0].GradNorms)
			for fqn, n := range want[0].GradNorms {
				require.InEpsilon(t, n, got[0].GradNorms[fqn], tolerance, fqn)
			}
			require.InEpsilon(t, want[1].Loss, got[1].Loss, 10*tolerance)
		})
	}
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
