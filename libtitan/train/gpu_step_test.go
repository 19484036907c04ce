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
	for _, compute := range []string{"float32", "bfloat16"} {
		for _, accum := range []int{1, 4} {
			t.Run(fmt.Sprint(compute, accum), func(t *testing.T) {
				job := func(folder string, n int) *manifest.Manifest {
					m := tinyJob(t, data)
					m.Training.MixedPrecisionParam = compute
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

// onRank calls f with the one rank of m on the GPU.
func onRank(t *testing.T, m *manifest.Manifest, f func(ctx context.Context, k *rank, g *gpu)) {
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
	require.NoError(t, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		require.NoError(t, err)
		f(ctx, k, k.machine.(*gpu))
		return k.machine.close()
	}))
}

// The optimizer writes the copies that are computed with; a step that is not finite, of kernels or a graph, changes neither
// parameters nor moments nor copies.
func TestGPUStepThatIsNotFinite(t *testing.T) {
	needGPU(t)
	for _, compute := range []string{"float32", "bfloat16"} {
		for _, after := range []int{0, 3} {
			t.Run(fmt.Sprint(compute, " after ", after), func(t *testing.T) {
				m := tinyJob(t, numbers(t))
				m.Training.MixedPrecisionParam = compute
				onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
					for range after {
						_, err := k.step(ctx, ctx)
						require.NoError(t, err)
					}
					require.Equal(t, compute == "bfloat16", len(g.narrow) > 0)
					held := residents(t, g)
					for fqn := range g.narrow {
						require.Equal(t, narrowed(held["parameter "+fqn]), held["copy "+fqn], fqn)
					}
					const bad = "layers.1.attention.wq.weight"
					at, nan := g.state[aParameter][bad], []byte{0, 0, 0xc0, 0x7f}
					if len(g.narrow) > 0 {
						at, nan = g.narrow[bad], nan[2:]
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
		if p := g.narrow[fqn]; p != 0 {
			get("copy", p, 2*n)
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
