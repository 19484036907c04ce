package train

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cuda"
	"titan/libtitan/model/llama3"
)

// torchtitan's TFLOP/s and MFU on an H200, at the tokens a second that it printed there; float8 is held to the same peak.
func TestMFU(t *testing.T) {
	for _, c := range []struct {
		what, model, tflops, mfu string
		layers                   int
		tps                      float64
	}{
		{"1B", "llama3-1b", "564.0", "57.03%", 16, 53029},
		{"8B, 8 layers", "llama3-8b", "556.4", "56.26%", 8, 33035},
		{"8B, 8 layers, float8", "llama3-8b", "637.0", "64.41%", 8, 37823},
		{"8B on two GPUs", "llama3-8b", "551.4", "55.75%", 32, 9521},
	} {
		m := tinyJob(t, "unread")
		preset, err := llama3.Find(c.model)
		require.NoError(t, err, c.what)
		m.Model.Config = preset.Config
		m.Model.Config.NumLayers, m.Model.Config.Tied = c.layers, false
		m.Training.SeqLen = 8192
		m.Derive()
		tflops := float64(m.Model.FlopsPerToken) * c.tps / 1e12
		r := &run{gpu: &cuda.Engine{Device: &cuda.Device{Name: "NVIDIA H200"}}}
		require.Equal(t, c.tflops, commas(tflops, 1), c.what)
		require.Equal(t, c.mfu, r.mfu(tflops), c.what)
	}
}

func TestPeakFLOPS(t *testing.T) {
	for name, want := range map[string]float64{
		"NVIDIA H200": 989e12, "NVIDIA H100 NVL": 835e12, "NVIDIA H100 PCIe": 756e12, "NVIDIA H100 80GB HBM3": 989e12,
		"NVIDIA H20": 148e12, "NVIDIA A100-SXM4-80GB": 312e12, "NVIDIA L40S": 362e12, "NVIDIA GeForce RTX 4090": 0,
	} {
		require.Equal(t, want, peakFLOPS(name), name)
	}
	require.Equal(t, "unknown", (&run{gpu: &cuda.Engine{Device: &cuda.Device{Name: "another"}}}).mfu(1))
	require.Equal(t, "unknown", (&run{}).mfu(1))
}

// What is taken shows, whoever reads it.
func TestGaugeOnGPU(t *testing.T) {
	needGPU(t)
	d, err := cuda.Open(0)
	require.NoError(t, err)
	leave, err := d.Enter()
	require.NoError(t, err)
	defer leave()
	s, err := d.NewStream(false)
	require.NoError(t, err)
	e, err := cuda.NewEngine(d, s, cuda.Options{})
	require.NoError(t, err)
	g := newGauge(e)
	defer g.close()
	t.Log(g.what)
	before, _ := g.read()
	p, err := e.Alloc(1 << 30)
	require.NoError(t, err)
	after, share := g.read()
	require.GreaterOrEqual(t, after-before, int64(1)<<30)
	require.InDelta(t, float64(after)/float64(d.TotalBytes), share, 0.02)
	require.NoError(t, e.Free(p))
}
