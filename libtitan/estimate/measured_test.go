package estimate

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
)

// measuredCPU is two cores, as titan-run bench found them.
func measuredCPU() (Machine, error) {
	f, err := os.Open("testdata/cpu.json")
	if err != nil {
		return Machine{}, err
	}
	defer f.Close()
	return ReadMachine(f)
}

func TestCurve(t *testing.T) {
	points := func() []point { return []point{{16, 40}, {1, 10}, {4, 30}, {4, 10}} }
	for _, c := range []struct{ at, want float64 }{{0.1, 10}, {1, 10}, {2, 14.142}, {4, 20}, {8, 28.284}, {16, 40}, {1e9, 40}} {
		require.InEpsilon(t, c.want, curve(points(), c.at), 1e-4, "%v", c.at)
	}
}

// A collective takes what was measured, between sizes and beyond them; over more ranks, by what each passes on.
func TestMeasuredCollectives(t *testing.T) {
	d := &Measured{Collectives: []CollectiveTime{{"all_gather", 2, 1000, 1e-3}, {"all_gather", 2, 4000, 2e-3}}}
	for _, c := range []struct {
		size  int
		bytes float64
		want  float64
	}{{2, 1000, 1e-3}, {2, 10, 1e-3}, {2, 2000, 1.4142e-3}, {2, 8000, 4e-3}, {4, 8000, 6e-3}} {
		s, ok := d.collective("all_gather", c.size, c.bytes)
		require.True(t, ok)
		require.InEpsilon(t, c.want, s, 1e-4, "%+v", c)
	}
	_, ok := d.collective("send", 2, 1)
	require.False(t, ok)
}

// Ranks that share a device do one after the other what one rank would: a pipeline saves nothing, shards cost their
// collectives, and nobody waits.
func TestSharedDevice(t *testing.T) {
	m, err := measuredCPU()
	require.NoError(t, err)
	s := space(t, "debugmodel", "cpu", 1)
	step := func(d manifest.MeshDims, rows, microbatches int) *Estimate {
		j := s.Job
		j.Dims, j.Rows, j.NumMicrobatches, j.Passes, j.Schedule, j.Compute, j.AC = d, rows, microbatches, 1, "1F1B", "float32", ac(t, "none")[0]
		require.NoError(t, j.cut(nil))
		e, err := Of(&j, &m)
		require.NoError(t, err)
		require.InEpsilon(t, e.StepSeconds, e.Parts.Sum(), 1e-9)
		return e
	}
	one := step(manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, 8, 1)
	two := step(manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, 4, 1)
	pipe := step(manifest.MeshDims{PP: 2, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}, 4, 2)
	require.InEpsilon(t, one.StepSeconds, two.StepSeconds, 0.1)
	require.Greater(t, two.Parts.FSDP, 0.0)
	require.InEpsilon(t, one.StepSeconds, pipe.StepSeconds, 0.1)
	require.Zero(t, pipe.Bubble)

	require.Equal(t, m.MemoryBytes/2, m.Share(2))
	f, err := Search(t.Context(), space(t, "debugmodel", "cpu", 4), 1)
	require.NoError(t, err)
	require.Equal(t, m.MemoryBytes/4, f.Capacity)
	m.Measured = nil
	require.Equal(t, m.MemoryBytes, m.Share(2))
}

func TestReadMeasuredRefuses(t *testing.T) {
	m, err := measuredCPU()
	require.NoError(t, err)
	for _, c := range []struct {
		spoil func(d *Measured)
		want  string
	}{
		{func(d *Measured) { d.Products = nil }, "hardware: measured: products, attention and kernels must have rows: leave measured out where nothing is"},
		{func(d *Measured) { d.Products[0].TFLOPS = 0 }, "hardware: measured: 0 is out of range: it must be 1e-09 to 1e+15"},
		{func(d *Measured) { d.Collectives[0].Ranks = 1 }, "hardware: measured: 0 is out of range: it must be 1e-09 to 1e+15"},
		{func(d *Measured) { d.Kernels = make([]KernelRate, maxRows+1) }, "hardware: measured: a list of 4097 rows: at most 4096"},
	} {
		bad := m
		text, err := json.Marshal(m.Measured)
		require.NoError(t, err)
		bad.Measured = &Measured{}
		require.NoError(t, json.Unmarshal(text, bad.Measured))
		c.spoil(bad.Measured)
		text, err = json.Marshal(bad)
		require.NoError(t, err)
		_, err = ReadMachine(strings.NewReader(string(text)))
		require.EqualError(t, err, c.want)
	}
}
