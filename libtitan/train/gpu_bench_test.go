package train

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
)

// BenchmarkGPU measures optimizer steps on the first GPU: tokens/s of the median step after the second, and where the
// time of a step goes, by class of kernel.
func BenchmarkGPU(b *testing.B) {
	d, err := cuda.Open(0)
	if err != nil {
		b.Skipf("SKIPPED: needs a GPU: %v", err)
	}
	require.NoError(b, d.Close())
	for _, c := range []struct {
		name, model          string
		layers, seqLen, rows int
		float8               string
		compile              bool
	}{
		{"debugmodel", "debugmodel", 6, 2048, 8, "off", false},
		{"1B", "llama3-1b", 16, 8192, 2, "off", false}, {"8B-8L", "llama3-8b", 8, 8192, 1, "off", false},
		{"1B-compiled", "llama3-1b", 16, 8192, 2, "off", true}, {"8B-8L-compiled", "llama3-8b", 8, 8192, 1, "off", true},
		{"1B-tensorwise", "llama3-1b", 16, 8192, 2, "tensorwise", false}, {"8B-8L-tensorwise", "llama3-8b", 8, 8192, 1, "tensorwise", false},
		{"8B-8L-rowwise", "llama3-8b", 8, 8192, 1, "rowwise", false},
		{"8B-8L-tensorwise-compiled", "llama3-8b", 8, 8192, 1, "tensorwise", true},
	} {
		b.Run(c.name, func(b *testing.B) {
			m := debugJob(b, "bfloat16", c.seqLen, c.rows)
			m.Compile = &manifest.Compile{Enable: c.compile, Components: []string{"model", "loss"}}
			preset, err := llama3.Find(c.model)
			require.NoError(b, err)
			m.Model.Config = preset.Config
			m.Model.Config.NumLayers, m.Model.Config.Tied, m.Model.Config.MaxSeqLen = c.layers, false, c.seqLen
			m.Float8 = manifest.NewFloat8(c.float8)
			m.Derive()
			o := quiet()
			o.Device = "cuda"
			r, err := open(m, o, false)
			require.NoError(b, err)
			defer r.close()
			r.train, err = r.openData(context.Background(), m.Data.Paths, nil, true)
			require.NoError(b, err)
			defer r.train.Close()
			r.report, err = newReport(r)
			require.NoError(b, err)
			var seconds []float64
			r.report.seen = func(s record) { seconds = append(seconds, s.StepSeconds) }
			require.NoError(b, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
				k, err := r.newRank(c, true)
				require.NoError(b, err)
				for k.pos.Step < 20 {
					_, err := k.step(ctx, ctx)
					require.NoError(b, err)
				}
				timesOf(b, k)
				return k.machine.close()
			}))
			seconds = seconds[2:]
			slices.Sort(seconds)
			b.ReportMetric(float64(m.Training.SeqLen*m.Training.GlobalBatchSize)/seconds[len(seconds)/2], "tokens/s")
			b.ReportMetric(1000*seconds[len(seconds)/2], "ms/step")
		})
	}
}

// timesOf logs where the time goes.
func timesOf(b *testing.B, k *rank) {
	times, err := k.runner.Times()
	require.NoError(b, err)
	var all float64
	for _, class := range slices.SortedFunc(maps.Keys(times), func(x, y string) int { return cmp.Compare(times[y], times[x]) }) {
		b.Logf("%9.3f ms  %s", times[class], class)
		all += times[class]
	}
	b.Logf("%9.3f ms  forward and backward", all)
	free, total, err := k.machine.(*gpu).e.MemInfo()
	require.NoError(b, err)
	b.ReportMetric(float64(total-free)/(1<<30), "GiB")
}
