package main

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/estimate"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/tools/internal/app"
)

// outside is what a GPU holds beside what is laid out: the context, the libraries' workspaces and, between GPUs, NCCL's
// buffers; GiB, measured.
const outside, outsideNCCL = 0.7, 3.6

// measuredJob is the job of a row of titan_h200.csv, bfloat16, AdamW. Rows have no memory where it was
// measured before values were placed as they are now.
func measuredJob(t *testing.T, r map[string]string) *manifest.Manifest {
	n := func(column string) int {
		x, err := strconv.Atoi(r[column])
		require.NoError(t, err, column)
		return x
	}
	p, err := llama3.Find(r["model"])
	require.NoError(t, err)
	p.Config.NumLayers, p.Config.Tied = n("layers"), false
	d := manifest.MeshDims{PP: n("pp"), DPReplicate: 1, DPShard: n("dp_shard"), CP: 1, TP: n("tp"), EP: 1}
	o := defaults()
	o.model, o.dtype, o.untied, o.config.NumLayers = r["model"], "bfloat16", true, n("layers")
	o.compile, o.float8, o.ac = r["compile"] == "true", r["float8"], r["ac"]
	o.dims, o.worldSize, o.schedule, o.microbatches = d, n("gpus"), r["schedule"], n("microbatches")
	o.batch.SeqLen, o.batch.LocalBatchSize = n("seq_len"), n("local_batch_size")
	o.given = func(flag string) bool {
		return flag == "layers" || flag == "seq-len" || flag == "local-batch-size" || flag == "world-size" || d.PP > 1 && (flag == "microbatches" || flag == "schedule")
	}
	m := job(t, o)
	split(t, m)
	m.Derive()
	require.NoError(t, manifest.Validate(m))
	return m
}

// What titan-run took on H200: memory within 4%, time within 10%.
func TestTitanMeasured(t *testing.T) {
	f, err := os.Open("testdata/titan_h200.csv")
	require.NoError(t, err)
	defer f.Close()
	lines, err := csv.NewReader(f).ReadAll()
	require.NoError(t, err)
	on, err := estimate.FindMachine("h200")
	require.NoError(t, err)
	on.Software.Runtime = "titan"
	benched, err := readHardware((&app.Env{}).Open, "testdata/h200_measured.json") // docs/measurements/h200_bench.log
	require.NoError(t, err)
	for _, line := range lines[1:] {
		r := map[string]string{}
		for i, cell := range line {
			r[lines[0][i]] = cell
		}
		t.Run(r["case"], func(t *testing.T) {
			m := measuredJob(t, r)
			j, err := estimate.FromManifest(m)
			require.NoError(t, err)
			for _, machine := range []*estimate.Machine{&on, &benched} {
				e, err := estimate.Of(j, machine)
				require.NoError(t, err)
				near(t, "ms a step, "+machine.Name, 1e3*e.StepSeconds, r["step_ms"], 0.10)
			}
			ranks, err := arenas(m, true)
			require.NoError(t, err)
			own := outside
			if m.Mesh.WorldSize > 1 {
				own += outsideNCCL
			}
			if r["device_gib"] != "" {
				near(t, "GiB of the device", float64(ranks[0].PeakBytes)/gib+own, r["device_gib"], 0.04)
			}
		})
	}
}

// near fails t where got is further from what was measured than share.
func near(t *testing.T, what string, got float64, measured string, share float64) {
	want, err := strconv.ParseFloat(measured, 64)
	require.NoError(t, err)
	t.Logf("%-22s %8.1f, measured %8.1f: %+5.1f%%", what, got, want, 100*(got/want-1))
	require.InDelta(t, 0, got/want-1, share, what)
}
