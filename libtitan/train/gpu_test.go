package train

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/plan"
)

// needGPU skips the test where there is no GPU, and says why.
func needGPU(t *testing.T) {
	d, err := cuda.Open(0)
	if err != nil {
		t.Skipf("SKIPPED: needs a GPU, make gpu runs it: %v", err)
	}
	require.NoError(t, d.Close())
}

// onGPU are the metrics of m on the GPU.
func onGPU(t *testing.T, m *manifest.Manifest) []record {
	t.Helper()
	return stepsWith(t, m, func(o *Options) { o.Device = "cuda" })
}

// PyTorch's gradients of step 1 and its 20 losses and norms, on the GPU in float32.
func TestReferenceOnGPU(t *testing.T) {
	needGPU(t)
	m := referenceManifest(t)
	want := readReference(t)
	weights, grads := readTensors(t, "tiny_llama.weights_bf16.safetensors"), readTensors(t, "tiny_llama.grads_step1_f32.safetensors")
	var got []record
	onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
		k.report.seen = func(s record) { got = append(got, s) }
		for fqn, w := range weights {
			require.NoError(t, g.e.Upload(g.state[aParameter][fqn], floatBytes(w)))
		}
		for k.pos.Step < 20 {
			_, err := k.step(ctx, ctx)
			require.NoError(t, err)
			if k.pos.Step > 1 {
				continue
			}
			have := gradientsOf(t, g)
			for fqn, want := range grads {
				x := have[fqn].x
				t.Logf("%s: off by %.2g", fqn, relativeError(x, want))
				require.Less(t, relativeError(x, want), 1e-5, fqn)
			}
		}
	})
	for i, w := range want.Float64 {
		require.InEpsilon(t, w.Loss, got[i].Loss, 1e-5, "loss of step %d", i+1)
		require.InEpsilon(t, w.GradNorm, got[i].GradNorm, 1e-5, "grad norm of step %d", i+1)
	}
}

// A job trains on the GPU as on the CPU: whole batches and microbatches, with and without activation checkpointing;
// twice, in float32, it gives the same bits.
func TestGPUTrainsAsTheCPU(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, c := range []struct {
		compute   string
		accum     int
		ac        string
		tolerance float64
	}{{"float32", 1, "none", 1e-5}, {"float32", 4, "full", 1e-5}, {"bfloat16", 1, "none", 1e-2}, {"bfloat16", 2, "selective:op", 1e-2}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			job := func() *manifest.Manifest {
				m := tinyJob(t, data)
				m.Training.MixedPrecisionParam = c.compute
				m.Training.LocalBatchSize, m.Training.GradAccumSteps = 8/c.accum, c.accum
				ac, err := manifest.ParseActivationCheckpoint(c.ac)
				require.NoError(t, err)
				m.ActivationCheckpoint = ac
				return m
			}
			got := onGPU(t, job())
			agree(t, steps(t, job()), got, c.tolerance, "the gpu")
			if c.compute == "float32" {
				require.Equal(t, got, onGPU(t, job()))
			}
		})
	}
}

// Float8 trains on the GPU as it is emulated on the CPU: 20 steps of the debugmodel.
func TestGPUFloat8TrainsAsTheCPU(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, c := range []struct {
		recipe, ac string
		accum      int
		compile    bool
	}{{"tensorwise", "none", 1, true}, {"tensorwise", "full", 2, false}, {"rowwise", "none", 1, true}, {"rowwise_with_gw_hp", "selective:op", 2, false}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			job := func() *manifest.Manifest {
				m := tinyJob(t, data)
				preset, err := llama3.Find("debugmodel")
				require.NoError(t, err)
				m.Model.Config = preset.Config
				m.Model.Config.MaxSeqLen, m.Training.SeqLen = 64, 64
				m.Training.LocalBatchSize, m.Training.GradAccumSteps, m.Training.Steps = 4/c.accum, c.accum, 20
				m.Compile = &manifest.Compile{Enable: c.compile, Components: []string{"model", "loss"}}
				m.Training.GlobalBatchSize, m.Training.MixedPrecisionParam, m.Optimizer.LR = 4, "bfloat16", 1e-3
				m.Float8 = manifest.NewFloat8(c.recipe)
				m.ActivationCheckpoint, err = manifest.ParseActivationCheckpoint(c.ac)
				require.NoError(t, err)
				m.Derive()
				return m
			}
			want, got := steps(t, job()), onGPU(t, job())
			for i, w := range want {
				t.Logf("step %d: loss %.5f on the cpu, %.5f on the gpu, grad norm %.5f, %.5f", i+1, w.Loss, got[i].Loss, w.GradNorm, got[i].GradNorm)
				require.InEpsilon(t, w.Loss, got[i].Loss, 0.01, "loss of step %d", i+1)
			}
			require.InEpsilon(t, want[0].GradNorm, got[0].GradNorm, 0.01)
			require.Less(t, got[19].Loss, 0.9*got[0].Loss, "it learns")
		})
	}
}

// What the GPU is given it gives back; a run goes on from the CPU's checkpoint on the GPU, and back.
func TestGPUCheckpoints(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	job := func(folder string, n int) *manifest.Manifest {
		m := tinyJob(t, data)
		m.Checkpoint = &manifest.Checkpoint{Folder: folder, Interval: 5}
		m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{15}[0]
		return m
	}
	want := steps(t, job(t.TempDir(), 15))
	there := t.TempDir()
	steps(t, job(there, 5))
	agree(t, want[5:10], onGPU(t, job(there, 10)), 1e-5, "on the gpu from the cpu's checkpoint")
	agree(t, want[10:], steps(t, job(there, 15)), 1e-5, "on the cpu from the gpu's checkpoint")

	onHost, err := Eval(context.Background(), job(there, 15), 2, quiet())
	require.NoError(t, err)
	o := quiet()
	o.Device = "cuda"
	onDevice, err := Eval(context.Background(), job(there, 15), 2, o)
	require.NoError(t, err)
	require.Equal(t, onHost.Tokens, onDevice.Tokens)
	require.InEpsilon(t, onHost.Loss, onDevice.Loss, 1e-5)

	r, err := open(tinyJob(t, data), o, false)
	require.NoError(t, err)
	defer r.close()
	require.NoError(t, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		require.NoError(t, err)
		taken, err := k.machine.take(manifest.AsyncOff)
		require.NoError(t, err)
		for _, h := range k.held {
			want, got := make([]float32, h.NumElements()), make([]float32, h.NumElements())
			k.fromSeed(h, want)
			require.NoError(t, taken.read(aParameter, h.Param.FQN, floatBytes(got), 0))
			require.Equal(t, want, got)
		}
		return k.machine.close()
	}))
}

// Gradients laid into the arena overlap nothing that is live with them, and need less room there than beside it.
func TestGradientsShareTheArena(t *testing.T) {
	m := tinyJob(t, numbers(t))
	m.Training.LocalBatchSize, m.Training.GradAccumSteps = 4, 2
	r, err := open(m, quiet(), false)
	require.NoError(t, err)
	prog, err := r.job.Program(0)
	require.NoError(t, err)
	apart := prog.ArenaBytes + plan.Measure(prog).Fixed[plan.Grad]
	prog.PlaceGrads()
	require.LessOrEqual(t, prog.ArenaBytes, apart)
	grads := map[string]bool{}
	for i, a := range prog.Slots {
		if a.Class == plan.Grad {
			grads[a.Name] = true
			require.Equal(t, len(prog.Steps)-1, a.Last)
		}
		require.LessOrEqual(t, a.Offset+a.Bytes(), prog.ArenaBytes)
		for _, b := range prog.Slots[:i] {
			together := a.First <= b.Last && b.First <= a.Last
			require.False(t, together && a.Offset < b.Offset+b.Bytes() && b.Offset < a.Offset+a.Bytes(), "%v %s and %v %s overlap", a.Class, a.FQN, b.Class, b.FQN)
		}
	}
	require.Len(t, grads, len(r.job.Params))
	at := prog.ArenaBytes
	prog.PlaceGrads()
	require.Equal(t, at, prog.ArenaBytes)
}
