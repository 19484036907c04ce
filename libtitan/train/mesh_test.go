package train

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// meshJob trains 8 layers with a vocabulary that no degree divides, on a mesh: 8 rows a step.
func meshJob(t *testing.T, data string, d manifest.MeshDims, microbatches int) *manifest.Manifest {
	m := tinyJob(t, data)
	c := &m.Model.Config
	c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim, c.Dim = 8, 8, 4, 8, 32
	d.EP = 1
	m.Mesh.Dims = d
	m.Mesh.WorldSize = d.PP * d.DPReplicate * d.DPShard * d.CP * d.TP
	m.Training.Steps = 5
	m.Training.LocalBatchSize = 8 / (d.DPReplicate * d.DPShard)
	m.Training.GlobalBatchSize, m.Training.GradAccumSteps = 8, 1
	m.Derive()
	if pp := d.PP; pp > 1 {
		m.Mesh.Dims.PP, m.Mesh.WorldSize = 1, m.Mesh.WorldSize/pp
		pipelined(t, m, pp, microbatches, "1F1B")
	}
	return m
}

// meshes are all meshes of at most 8 ranks with degrees 1, 2 and 4.
func meshes() (out []manifest.MeshDims) {
	degrees := []int{1, 2, 4}
	for _, pp := range degrees {
		for _, rep := range degrees {
			for _, shard := range degrees {
				for _, cp := range degrees {
					for _, tp := range degrees {
						if pp*rep*shard*cp*tp <= 8 {
							out = append(out, manifest.MeshDims{PP: pp, DPReplicate: rep, DPShard: shard, CP: cp, TP: tp, EP: 1})
						}
					}
				}
			}
		}
	}
	return out
}

// wholeMatrix is set by make matrix; make test takes a sample.
var wholeMatrix = os.Getenv("TITAN_MATRIX") != ""

// Every product of every kind of parallelism trains as one rank does, with activation checkpointing bit for bit as
// without, in float32 to 1e-5 and in bfloat16 to 2e-2.
func TestMatrix(t *testing.T) {
	data := numbers(t)
	ran := 0
	for _, c := range []struct {
		compute   string
		tolerance float64
	}{{"float32", 1e-5}, {"bfloat16", 2e-2}} {
		job := func(d manifest.MeshDims) *manifest.Manifest {
			m := meshJob(t, data, d, 8/(d.DPReplicate*d.DPShard))
			m.Training.MixedPrecisionParam = c.compute
			return m
		}
		want := steps(t, job(meshes()[0]))
		for i, d := range meshes() {
			if !wholeMatrix && i%7 != 3 {
				continue
			}
			t.Run(fmt.Sprintf("%s/pp%d_rep%d_shard%d_cp%d_tp%d", c.compute, d.PP, d.DPReplicate, d.DPShard, d.CP, d.TP), func(t *testing.T) {
				got := steps(t, job(d))
				agree(t, want, got, c.tolerance, "mesh")
				m := job(d)
				m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: "full"}
				require.Equal(t, got, steps(t, m), "activation checkpointing, and a second run, change no bit")
				ran++
			})
		}
	}
	t.Logf("%d products ran, each with activation checkpointing off and on", ran)
}

// What the backward computes again has the bits of what was saved.
func TestActivationCheckpointingChangesNoBit(t *testing.T) {
	data := numbers(t)
	for _, d := range []manifest.MeshDims{
		{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1},
		{PP: 1, DPReplicate: 1, DPShard: 2, CP: 2, TP: 2},
		{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2},
	} {
		want := steps(t, meshJob(t, data, d, 2))
		for _, ac := range []manifest.ActivationCheckpoint{{Mode: "full"}, {Mode: "selective", Option: "op"}, {Mode: "selective", Option: "cheap"}, {Mode: "selective", Option: "2"}} {
			m := meshJob(t, data, d, 2)
			m.ActivationCheckpoint = &ac
			require.Equal(t, want, steps(t, m), "%+v %+v", d, ac)
		}
	}
}

// Every schedule sums gradients in the order of microbatches, so all have the bits of one rank, in either type and
// whatever the backward computes again.
func TestSchedulesHaveTheBitsOfOneRank(t *testing.T) {
	data := numbers(t)
	one := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}
	for _, compute := range []string{"float32", "bfloat16"} {
		job := func() *manifest.Manifest {
			m := meshJob(t, data, one, 1)
			m.Training.MixedPrecisionParam = compute
			return m
		}
		alone := job()
		alone.Training.LocalBatchSize, alone.Training.GradAccumSteps = 1, 8
		want := steps(t, alone)
		for i, schedule := range pipeline.Names() {
			for j, ac := range []string{"none", "full", "selective"} {
				for k, pp := range []int{2, 4} {
					if !wholeMatrix && (i+j+k)%3 != 0 {
						continue
					}
					m := pipelined(t, job(), pp, 8, schedule)
					m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: ac}
					if ac == "selective" {
						m.ActivationCheckpoint.Option = "op"
					}
					require.Equal(t, want, steps(t, m), "%s pp %d, %s, activation checkpointing %s", schedule, pp, compute, ac)
				}
			}
		}
	}
}

// Every schedule on ranks that cut the stages further.
func TestSchedulesOverMeshes(t *testing.T) {
	data := numbers(t)
	want := steps(t, meshJob(t, data, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, 1))
	for i, schedule := range pipeline.Names() {
		for j, d := range []manifest.MeshDims{
			{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2}, {PP: 1, DPReplicate: 2, DPShard: 1, CP: 2, TP: 1},
		} {
			if !wholeMatrix && i%2 != j {
				continue
			}
			m := pipelined(t, meshJob(t, data, d, 1), 2, 4, schedule)
			agree(t, want, steps(t, m), 1e-5, fmt.Sprintf("%s %+v", schedule, d))
		}
	}
}

// The choices of tensor parallelism and of when parameters are gathered change what is sent, not what is computed.
func TestParallelismOptions(t *testing.T) {
	data := numbers(t)
	d := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 4}
	want := steps(t, meshJob(t, data, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}, 1))
	for name, set := range map[string]func(m *manifest.Mesh){
		"no sequence parallel":          func(m *manifest.Mesh) { m.DisableSequenceParallel = true },
		"no loss parallel":              func(m *manifest.Mesh) { m.DisableLossParallel = true },
		"neither":                       func(m *manifest.Mesh) { m.DisableSequenceParallel, m.DisableLossParallel = true, true },
		"gathered once a step":          func(m *manifest.Mesh) { m.ReshardAfterForward = "never" },
		"gathered for every microbatch": func(m *manifest.Mesh) { m.ReshardAfterForward = "always" },
	} {
		m := meshJob(t, data, d, 1)
		set(m.Mesh)
		agree(t, want, steps(t, m), 1e-5, name)
	}
}

// Keys and values that go round compute what gathered ones do.
func TestRingAttention(t *testing.T) {
	data := numbers(t)
	for _, c := range []struct {
		compute   string
		tolerance float64
	}{{"float32", 1e-5}, {"bfloat16", 2e-2}} {
		job := func(d manifest.MeshDims) *manifest.Manifest {
			m := meshJob(t, data, d, 2)
			m.Training.MixedPrecisionParam = c.compute
			return m
		}
		want := steps(t, job(meshes()[0]))
		for _, d := range []manifest.MeshDims{
			{PP: 1, DPReplicate: 1, DPShard: 1, CP: 2, TP: 1}, {PP: 1, DPReplicate: 1, DPShard: 1, CP: 4, TP: 2}, {PP: 2, DPReplicate: 1, DPShard: 2, CP: 2, TP: 1},
		} {
			m := job(d)
			m.Mesh.CPRotate = "ring"
			agree(t, want, steps(t, m), c.tolerance, fmt.Sprintf("%+v", d))
		}
	}
}

// savedAgain loads what m resumes from and saves it, with no step in between, in another folder.
func savedAgain(t *testing.T, m *manifest.Manifest) string {
	ctx := context.Background()
	r, err := open(m, quiet(), false)
	require.NoError(t, err)
	defer r.close()
	r.train, err = r.openData(ctx, m.Data.Paths, nil, true)
	require.NoError(t, err)
	defer r.train.Close()
	old := m.Checkpoint.Folder
	m.Checkpoint.Folder = t.TempDir()
	defer func() { m.Checkpoint.Folder = old }()
	require.NoError(t, r.start(ctx, func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		if err != nil {
			return err
		}
		return k.save(ctx, true)
	}))
	return checkpoint.StepDir(m.Checkpoint.Folder, r.left.Step)
}

// A checkpoint of one layout goes on in another, its optimizer and schedule of microbatches too: the same losses to 1e-5,
// and, saved again before any step, the same bytes.
func TestResumeOnAnotherMesh(t *testing.T) {
	data := numbers(t)
	mesh := func(pp, rep, shard, cp, tp int) manifest.MeshDims {
		return manifest.MeshDims{PP: pp, DPReplicate: rep, DPShard: shard, CP: cp, TP: tp}
	}
	one := mesh(1, 1, 1, 1, 1)
	straight := t.TempDir()
	job := func(d manifest.MeshDims, folder string, n int) *manifest.Manifest {
		m := meshJob(t, data, d, 2)
		m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 3}
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{6}[0]
		return m
	}
	want := steps(t, job(one, straight, 6))
	for i, pair := range [][2]manifest.MeshDims{
		{one, mesh(1, 1, 4, 1, 1)}, {mesh(1, 1, 4, 1, 1), one}, {mesh(1, 1, 2, 1, 2), mesh(1, 1, 4, 1, 1)}, {mesh(1, 1, 1, 1, 4), mesh(1, 1, 2, 1, 2)},
		{mesh(2, 1, 2, 1, 1), mesh(1, 2, 1, 1, 2)}, {mesh(4, 1, 1, 1, 1), mesh(2, 1, 1, 2, 1)}, {mesh(2, 1, 4, 1, 1), mesh(1, 1, 1, 2, 2)},
		{mesh(1, 1, 2, 2, 2), mesh(2, 1, 2, 1, 2)}, {mesh(1, 2, 2, 1, 1), mesh(1, 1, 1, 4, 1)}, {mesh(2, 1, 1, 1, 4), mesh(4, 1, 2, 1, 1)},
		{mesh(1, 1, 1, 4, 2), mesh(1, 1, 8, 1, 1)}, {mesh(1, 1, 8, 1, 1), mesh(2, 2, 1, 1, 2)},
	} {
		if !wholeMatrix && i%3 > 0 {
			continue
		}
		t.Run(fmt.Sprint(pair), func(t *testing.T) {
			folder := t.TempDir()
			steps(t, job(pair[0], folder, 3))
			next := job(pair[1], folder, 6)
			if pp := next.Mesh.Dims.PP; pp > 1 { // another schedule, two stages a rank
				next.Mesh.Dims.PP, next.Mesh.WorldSize = 1, next.Mesh.WorldSize/pp
				pipelined(t, next, pp, next.Training.LocalBatchSize, []string{"Interleaved1F1B", "InterleavedZeroBubble"}[i%2])
			}
			require.Equal(t, tensorsOf(t, checkpoint.StepDir(folder, 3)), tensorsOf(t, savedAgain(t, next)), "before any step")
			agree(t, want[3:], steps(t, next), 1e-5, "resumed")
		})
	}
}
