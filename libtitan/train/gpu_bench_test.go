package train

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exec"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/plan"
)

// gpuJob is a model to train on one GPU.
type gpuJob struct {
	name, model          string
	layers, seqLen, rows int
	float8               string
	compile              bool
}

var gpuJobs = []gpuJob{
	{"debugmodel", "debugmodel", 6, 2048, 8, "off", false},
	{"1B", "llama3-1b", 16, 8192, 2, "off", false}, {"8B-8L", "llama3-8b", 8, 8192, 1, "off", false},
	{"1B-compiled", "llama3-1b", 16, 8192, 2, "off", true}, {"8B-8L-compiled", "llama3-8b", 8, 8192, 1, "off", true},
	{"1B-tensorwise", "llama3-1b", 16, 8192, 2, "tensorwise", false}, {"8B-8L-tensorwise", "llama3-8b", 8, 8192, 1, "tensorwise", false},
	{"8B-8L-rowwise", "llama3-8b", 8, 8192, 1, "rowwise", false},
	{"1B-tensorwise-compiled", "llama3-1b", 16, 8192, 2, "tensorwise", true}, {"8B-8L-tensorwise-compiled", "llama3-8b", 8, 8192, 1, "tensorwise", true},
}

// BenchmarkGPU measures optimizer steps on the first GPU: tokens/s of the median step after the second, and where the
// time of a step goes, by class of kernel, beside what products and copies reach alone.
func BenchmarkGPU(b *testing.B) {
	for _, c := range gpuJobs {
		b.Run(c.name, func(b *testing.B) { benchGPU(b, c, nil) })
	}
}

// BenchmarkGPUWays does without what makes a step fast: one graph, copies of parameters that AdamW makes, sums that products make,
// gradients as narrow as products, an embedding's gradient of a step's tokens alone, products joined.
func BenchmarkGPUWays(b *testing.B) {
	for _, c := range gpuJobs[:3] {
		b.Run(c.name+"/all", func(b *testing.B) { benchGPU(b, c, nil) })
		b.Run(c.name+"/no graph", func(b *testing.B) {
			b.Setenv("CUDA_LAUNCH_BLOCKING", "1") // the driver reads it earlier: it changes nothing but ours
			benchGPU(b, c, nil)
		})
		copies, sums, place := (*plan.Program).KeepCopies, (*plan.Program).SumInProducts, (*plan.Program).PlaceGrads
		narrow, rows := (*plan.Program).NarrowGrads, (*plan.Program).GradsByRows
		b.Run(c.name+"/no joins", func(b *testing.B) { benchGPU(b, c, []func(*plan.Program){copies, sums, narrow, rows, place}) })
		b.Run(c.name+"/no copies", func(b *testing.B) { benchGPU(b, c, []func(*plan.Program){sums, narrow, rows, place}) })
		b.Run(c.name+"/no sums", func(b *testing.B) { benchGPU(b, c, []func(*plan.Program){copies, narrow, rows, place}) })
		b.Run(c.name+"/wide gradients", func(b *testing.B) { benchGPU(b, c, []func(*plan.Program){copies, sums, rows, place}) })
		b.Run(c.name+"/whole gradients", func(b *testing.B) { benchGPU(b, c, []func(*plan.Program){copies, sums, narrow, place}) })
	}
}

// benchGPU measures a job, its step rearranged in other ways than usual if they are given.
func benchGPU(b *testing.B, c gpuJob, ways []func(p *plan.Program)) {
	d, err := cuda.Open(0)
	if err != nil {
		b.Skipf("SKIPPED: needs a GPU: %v", err)
	}
	require.NoError(b, d.Close())
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
	r.arrangedBy(b, ways)
	var seconds []float64
	r.report.seen = func(s record) { seconds = append(seconds, s.StepSeconds) }
	require.NoError(b, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		require.NoError(b, err)
		for k.pos.Step < 16 {
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
}

// arrangedBy has the one rank of r run a step that is rearranged in these ways alone; none: as usual.
func (r *run) arrangedBy(t testing.TB, ways []func(p *plan.Program)) {
	if ways == nil {
		return
	}
	prog, err := r.job.Program(0)
	require.NoError(t, err)
	for _, way := range ways {
		way(prog)
	}
	r.programs[0] = prog
}

// timesOf logs where the time goes.
func timesOf(b *testing.B, k *rank) {
	times, err := k.runner.Times()
	require.NoError(b, err)
	slices.SortStableFunc(times, func(x, y exec.Time) int { return cmp.Compare(y.Milliseconds, x.Milliseconds) })
	product, copied := ceilings(b, k.machine.(*gpu))
	b.Logf("%9s %6s %10s %10s  of 8192x8192x8192 at %.0f TFLOP/s, of a copy at %.0f GB/s", "ms", "steps", "TFLOP/s", "GB/s", product, copied)
	var all exec.Time
	for _, t := range times {
		b.Logf("%9.3f %6d %10s %10s  %s", t.Milliseconds, t.Steps, rate(t.FLOPs/t.Milliseconds/1e9, product), rate(t.Bytes/t.Milliseconds/1e6, copied), t.Class)
		all.Milliseconds += t.Milliseconds
		all.Steps += t.Steps
	}
	free, total, err := k.machine.(*gpu).e.MemInfo()
	require.NoError(b, err)
	b.ReportMetric(float64(total-free)/(1<<30), "GiB")
	b.Logf("%9.3f %6d  a step", all.Milliseconds, all.Steps)
}

func rate(x, most float64) string {
	if x == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %3.0f%%", x, 100*x/most)
}

// ceilings are what a large product and a copy reach, each for half a second: TFLOP/s and GB/s. The bits of moments are multiplied:
// of zeros a product is faster.
func ceilings(b *testing.B, g *gpu) (product, copied float64) {
	const n, bytes = 8192, 1 << 30
	e := g.e
	p, err := e.Alloc(2 * bytes)
	require.NoError(b, err)
	defer func() { require.NoError(b, e.Free(p)) }()
	const piece = 512 << 10
	for at := cuda.Ptr(0); at < 2*bytes; at += piece {
		require.NoError(b, e.Stream.Copy(p+at, g.state[anAverage]["layers.0.feed_forward.w1.weight"], piece))
	}
	multiply, err := e.Product(cuda.Product{M: n, N: n, K: n, TransB: true, In: dtype.BFloat16, Out: dtype.BFloat16}, p, p+2*n*n, p+4*n*n)
	require.NoError(b, err)
	var events [3]*cuda.Event
	for i := range events {
		events[i], err = e.NewEvent(true)
		require.NoError(b, err)
	}
	const times = 400
	for i := range 2 * times {
		if i%times == 0 {
			require.NoError(b, e.Stream.Record(events[i/times]))
		}
		if i < times {
			require.NoError(b, multiply())
		} else {
			require.NoError(b, e.Stream.Copy(p+bytes, p, bytes))
		}
	}
	require.NoError(b, e.Stream.Record(events[2]))
	require.NoError(b, events[2].Sync())
	ms, err := events[1].Since(events[0])
	require.NoError(b, err)
	product = times * 2 * n * n * n / float64(ms) / 1e9
	ms, err = events[2].Since(events[1])
	require.NoError(b, err)
	return product, times * 2 * bytes / float64(ms) / 1e6
}
