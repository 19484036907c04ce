package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
)

// A run whose data-parallel size changes goes on with the rows that a straight run takes: one cursor, whatever the mesh.
func TestDataGoesOnAtAnotherDataParallelSize(t *testing.T) {
	data := numbers(t)
	mesh := func(shard, tp int) manifest.MeshDims {
		return manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: shard, CP: 1, TP: tp}
	}
	job := func(d manifest.MeshDims, folder string, n int) *manifest.Manifest {
		m := meshJob(t, data, d, 1)
		m.Checkpoint = &manifest.Checkpoint{Folder: folder}
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{6}[0]
		return m
	}
	hashes := func(s []record) (out []string) {
		for _, r := range s {
			out = append(out, r.BatchHash)
		}
		return out
	}
	want := hashes(steps(t, job(mesh(4, 1), t.TempDir(), 6)))
	for _, d := range []manifest.MeshDims{mesh(2, 1), mesh(8, 1), mesh(2, 2)} {
		folder := t.TempDir()
		got := hashes(steps(t, job(mesh(4, 1), folder, 3)))
		got = append(got, hashes(steps(t, job(d, folder, 6)))...)
		require.Equal(t, want, got, "%+v", d)
	}
}

// A vocabulary of 259 over 3 ranks, and 96 hidden channels over them: no cut is even.
func TestUnevenCuts(t *testing.T) {
	data := numbers(t)
	job := func(d manifest.MeshDims) *manifest.Manifest {
		m := meshJob(t, data, d, 1)
		m.Model.Config.FFNHidden = 97
		m.Training.LocalBatchSize, m.Training.GlobalBatchSize = 6/d.DPShard, 6
		m.Derive()
		return m
	}
	one := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1}
	want := steps(t, job(one))
	for _, d := range []manifest.MeshDims{{PP: 1, DPReplicate: 1, DPShard: 3, CP: 1, TP: 1}, {PP: 1, DPReplicate: 1, DPShard: 3, CP: 1, TP: 2}, {PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 4}} {
		agree(t, want, steps(t, job(d)), 1e-5, "uneven")
	}
}
