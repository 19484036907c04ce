package train

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// surely are the metrics of m on the GPU, the same bits in every run.
func surely(t *testing.T, m *manifest.Manifest) []record {
	t.Helper()
	return stepsWith(t, m, func(o *Options) { o.Device, o.Deterministic = "cuda", true })
}

// A step as one graph gives the bits of its kernels one by one, and a run that goes on those of one that never stopped.
func TestGPUGraphHasTheBitsOfItsKernels(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, compute := range []string{"float32", "bfloat16", "tensorwise"} {
		for _, accum := range []int{1, 4} {
			t.Run(fmt.Sprint(compute, accum), func(t *testing.T) {
				job := func(folder string, n int) *manifest.Manifest {
					m := computingIn(t, compute, data)
					m.Training.LocalBatchSize, m.Training.GradAccumSteps = 8/accum, accum
					m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{10}[0]
					m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 100}
					return m
				}
				want := surely(t, job(t.TempDir(), 10))
				there := t.TempDir()
				require.Equal(t, want[:6], surely(t, job(there, 6)))
				require.Equal(t, want[6:], surely(t, job(there, 10)), "resumed")
				t.Setenv("CUDA_LAUNCH_BLOCKING", "1") // the driver has read it before: it changes nothing but how a step is launched
				require.Equal(t, want, surely(t, job(t.TempDir(), 10)), "kernel by kernel")
			})
		}
	}
}

// onRank calls f with the one rank of m on the GPU, its step rearranged in other ways than usual if they are given.
func onRank(t *testing.T, m *manifest.Manifest, f func(ctx context.Context, k *rank, g *gpu), ways ...func(p *plan.Program)) {
	o := quiet()
	o.Device = "cuda"
	r, err := open(m, o, false)
	require.NoError(t, err)
	defer r.close()
	r.train, err = r.openData(context.Background(), m.Data.Paths, nil, false)
	require.NoError(t, err)
	defer r.train.Close()
	r.report, err = newReport(r)
	require.NoError(t, err)
	r.arrangedBy(t, ways)
	require.NoError(t, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		require.NoError(t, err)
		f(ctx, k, k.machine.(*gpu))
		return k.machine.close()
	}))
}

// computingIn is tinyJob in a type, or in bfloat16 with linears in float8.
func computingIn(t *testing.T, compute, data string) *manifest.Manifest {
	m := tinyJob(t, data)
	if m.Training.MixedPrecisionParam = compute; compute != "float32" && compute != "bfloat16" {
		m.Training.MixedPrecisionParam, m.Float8 = "bfloat16", manifest.NewFloat8(compute)
	}
	return m
}

// The optimizer writes the copies that are computed with and the largest magnitudes that scales follow from; a step that is not
// finite, of kernels or a graph, changes neither parameters nor moments nor those.
func TestGPUStepThatIsNotFinite(t *testing.T) {
	needGPU(t)
	for _, compute := range []string{"float32", "bfloat16", "tensorwise"} {
		for _, after := range []int{0, 3} {
			t.Run(fmt.Sprint(compute, " after ", after), func(t *testing.T) {
				onRank(t, computingIn(t, compute, numbers(t)), func(ctx context.Context, k *rank, g *gpu) {
					for range after {
						_, err := k.step(ctx, ctx)
						require.NoError(t, err)
					}
					require.Equal(t, compute != "float32", len(g.kept[plan.Copy]) > 0)
					require.Equal(t, compute == "tensorwise", len(g.kept[plan.Largest]) > 0)
					held := residents(t, g)
					for fqn := range g.kept[plan.Copy] {
						require.Equal(t, narrowed(held["parameter "+fqn]), held["copy "+fqn], fqn)
					}
					for fqn := range g.kept[plan.Largest] {
						require.Equal(t, largestOf(held["parameter "+fqn]), held["largest of "+fqn], fqn)
					}
					const bad = "layers.1.attention.wq.weight"
					at, nan := g.state[aParameter][bad], []byte{0, 0, 0xc0, 0x7f}
					if g.kept[plan.Copy][bad] != 0 {
						at, nan = g.kept[plan.Copy][bad], nan[2:]
					}
					require.NoError(t, g.e.Upload(at, nan))
					held = residents(t, g)
					_, err := k.step(ctx, ctx)
					require.ErrorContains(t, err, fmt.Sprintf("step %d: loss NaN, grad_norm NaN: not finite (the first bad one is ", after+1))
					require.Equal(t, int(exit.No), exit.Code(err))
					require.Equal(t, held, residents(t, g))
				})
			})
		}
	}
}

// residents downloads all that outlives a step.
func residents(t *testing.T, g *gpu) map[string][]byte {
	require.NoError(t, g.e.Stream.Sync())
	out := map[string][]byte{}
	for _, h := range g.held {
		fqn, n := h.Param.FQN, int(h.NumElements())
		get := func(what string, p cuda.Ptr, bytes int) {
			out[what+" "+fqn] = make([]byte, bytes)
			require.NoError(t, g.e.Download(out[what+" "+fqn], p))
		}
		for _, kind := range stateKinds(true) {
			get(kind.String(), g.state[kind][fqn], 4*n)
		}
		if p := g.kept[plan.Copy][fqn]; p != 0 {
			get("copy", p, 2*n)
		}
		if p := g.kept[plan.Largest][fqn]; p != 0 {
			get("largest of", p, 4)
		}
	}
	return out
}

// narrowed is float32's bytes as bfloat16's.
func narrowed(wide []byte) (out []byte) {
	for i := 0; i < len(wide); i += 4 {
		b := dtype.BF16(math.Float32frombits(binary.LittleEndian.Uint32(wide[i:])))
		out = append(out, byte(b), byte(b>>8))
	}
	return out
}

// largestOf is the largest magnitude of float32's bytes.
func largestOf(x []byte) []byte {
	var top uint32
	for i := 0; i < len(x); i += 4 {
		top = max(top, binary.LittleEndian.Uint32(x[i:])&^(1<<31))
	}
	return binary.LittleEndian.AppendUint32(nil, top)
}

// Float8 goes on from a checkpoint as if it had never stopped, and validates beside the training with the weights of the moment:
// the largest magnitudes, which no checkpoint has, are those of the parameters at every time.
func TestGPUFloat8GoesOn(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	job := func(folder string, n int) *manifest.Manifest {
		m := computingIn(t, "tensorwise", data)
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{8}[0]
		m.Data.ValidationPaths, m.Data.ValidationInterval, m.Data.ValidationSteps = m.Data.Paths, 2, 1
		m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 4}
		return m
	}
	whole, there := t.TempDir(), t.TempDir()
	want := surely(t, job(whole, 8))
	got := surely(t, job(there, 4))
	require.Equal(t, want, append(got, surely(t, job(there, 8))...), "stopped and resumed")
	onGPU := func(o *Options) { o.Device, o.Deterministic = "cuda", true }
	o := quiet()
	onGPU(&o)
	after, err := Eval(context.Background(), job(whole, 8), 1, o)
	require.NoError(t, err)
	require.Equal(t, recordValidation(t, job(t.TempDir(), 8), onGPU).Loss, after.Loss, "validated beside the training as after it")
	m := job("", 8)
	m.Checkpoint = nil
	onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
		for range 5 {
			_, err := k.step(ctx, ctx)
			require.NoError(t, err)
			held := residents(t, g)
			require.NotEmpty(t, g.kept[plan.Largest])
			for fqn := range g.kept[plan.Largest] {
				require.Equal(t, largestOf(held["parameter "+fqn]), held["largest of "+fqn], fqn)
			}
		}
	})
}
