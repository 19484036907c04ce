package estimate

import (
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pipeline"
)

func ac(t require.TestingT, names ...string) (out []manifest.ActivationCheckpoint) {
	for _, name := range names {
		a, err := manifest.ParseActivationCheckpoint(name)
		require.NoError(t, err)
		out = append(out, *a)
	}
	return out
}

func space(t require.TestingT, model, gpu string, world int) *Space {
	p, err := llama3.Find(model)
	require.NoError(t, err)
	m, err := FindMachine(gpu)
	if gpu == "cpu" {
		m, err = measuredCPU()
	}
	require.NoError(t, err)
	return &Space{
		Job:   Job{Model: p.Config, SeqLen: p.SeqLen, Compute: "bfloat16", Compile: true, CompileLoss: true, Float8: "off"},
		World: world, Machine: m, AC: ac(t, "none", "selective:cheap", "selective:op", "selective:2", "full"), Schedules: pipeline.Names(),
	}
}

// What a search finds fits, and is the same each time; who looks at 16,384 GPUs has 1,848 meshes.
func TestSearchOnManyGPUs(t *testing.T) {
	s := space(t, "llama3-405b", "h100", 16384)
	s.GlobalBatch = 2048
	f, err := Search(t.Context(), s, 3)
	require.NoError(t, err)
	require.Equal(t, 1848, f.Meshes)
	require.Len(t, f.Plans, 3)
	require.Contains(t, f.Rejected, Rejection{"mesh.dims.tp 16: model.config.num_kv_heads 8 is not divisible by it", 1})
	for i, p := range f.Plans {
		require.LessOrEqual(t, p.Estimate.PeakBytes, s.Machine.MemoryBytes)
		require.Equal(t, 2048.0*8192, p.Job.StepTokens())
		if i > 0 {
			require.Negative(t, compare(f.Plans[i-1], p))
		}
	}
	again, err := Search(t.Context(), s, 3)
	require.NoError(t, err)
	require.Equal(t, f, again)
}

// No mesh holds 405B parameters' 6.5 TB on 8 GPUs: three tell by how much they miss it, the nearest first.
func TestSearchMisses(t *testing.T) {
	s := space(t, "llama3-405b", "h100", 8)
	f, err := Search(t.Context(), s, 1)
	require.NoError(t, err)
	require.Empty(t, f.Plans)
	require.Len(t, f.Misses, 3)
	for i, p := range f.Misses {
		require.Greater(t, p.Estimate.PeakBytes, f.Capacity)
		if i > 0 {
			require.GreaterOrEqual(t, p.Estimate.PeakBytes, f.Misses[i-1].Estimate.PeakBytes)
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	for _, world := range []int{16384, 1_000_000} {
		b.Run(strconv.Itoa(world), func(b *testing.B) {
			s := space(b, "llama3-405b", "h100", world)
			for b.Loop() {
				_, err := Search(b.Context(), s, 5)
				require.NoError(b, err)
			}
		})
	}
}

// brute estimates every plan of s in full, and orders the best of each mesh.
func brute(t require.TestingT, s *Space, fits func(p Plan) bool, order func(p, q Plan) int) (best []Plan) {
	of := map[manifest.MeshDims]int{} // in best
	for _, j := range Plans(s) {
		e, err := Of(j, &s.Machine)
		require.NoError(t, err)
		p := Plan{j, e}
		if !fits(p) {
			continue
		}
		i, known := of[j.Dims]
		switch {
		case !known:
			of[j.Dims] = len(best)
			best = append(best, p)
		case order(p, best[i]) < 0:
			best[i] = p
		}
	}
	slices.SortStableFunc(best, order)
	return best
}

func summary(plans []Plan) (out []any) {
	for _, p := range plans {
		out = append(out, p.Job.Dims, p.pace(), p.Estimate.PeakBytes)
	}
	return out
}

// Search finds what trying everything finds, also when nothing fits.
func TestSearchIsExhaustive(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := space(t, rapid.SampledFrom([]string{"llama3-1b", "llama3-3b", "debugmodel"}).Draw(t, "model"), rapid.SampledFrom([]string{"h100", "l40s", "h100-96g-500w", "cpu"}).Draw(t, "gpu"), rapid.SampledFrom([]int{1, 2, 4, 6, 8, 12, 16}).Draw(t, "world"))
		s.Job.Model.NumLayers = rapid.IntRange(1, 8).Draw(t, "layers")
		s.Job.Compile = rapid.Bool().Draw(t, "compile")
		if s.Machine.FP8TFLOPS > 0 {
			s.Job.Float8 = rapid.SampledFrom([]string{"off", "tensorwise"}).Draw(t, "float8")
		}
		s.Dims.TP = rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "tp")
		s.Dims.PP = rapid.SampledFrom([]int{0, 0, 2, 4}).Draw(t, "pp")
		s.LocalBatch = rapid.SampledFrom([]int{0, 1, 4}).Draw(t, "local")
		s.GlobalBatch = rapid.SampledFrom([]int{0, 48, 96}).Draw(t, "global")
		s.Microbatches = rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "microbatches")
		s.Schedules = rapid.SampledFrom([][]string{pipeline.Names(), {"1F1B"}, {"ZBVZeroBubble", "Interleaved1F1B"}}).Draw(t, "schedules")
		s.MemoryBytes = int64(rapid.SampledFrom([]float64{0.01, 1, 4, 12, 40, 80}).Draw(t, "GiB") * gib)
		top := rapid.IntRange(1, 4).Draw(t, "top")
		f, err := Search(t.Context(), s, top)
		require.NoError(t, err)
		want := brute(t, s, func(p Plan) bool { return p.Estimate.PeakBytes <= s.MemoryBytes }, compare)
		require.Equal(t, summary(want[:min(top, len(want))]), summary(f.Plans))
		if len(want) == 0 {
			want = brute(t, s, func(Plan) bool { return true }, smaller)
			require.Equal(t, summary(want[:min(numMisses, len(want))]), summary(f.Misses))
		}
	})
}
