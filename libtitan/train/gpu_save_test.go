package train

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/nn"
	"titan/libtitan/parallel"
)

// The blocks of a part are its rows, each once, in order, none larger than it may be.
func TestBlocksCoverAPart(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := parallel.Held{Param: &nn.Param{FQN: "w"}, Offsets: []int64{rapid.Int64Range(0, 9).Draw(t, "first row")}, Sizes: []int64{rapid.Int64Range(0, 50).Draw(t, "rows")}}
		if rapid.Bool().Draw(t, "matrix") {
			h.Offsets, h.Sizes = append(h.Offsets, 3), append(h.Sizes, rapid.Int64Range(0, 9).Draw(t, "columns"))
		}
		size := max(rapid.IntRange(4, 200).Draw(t, "size"), int(rowBytes(h)))
		offsets, sizes := slices.Clone(h.Offsets), slices.Clone(h.Sizes)
		next, bytes := h.Offsets[0], int64(0)
		for _, b := range blocksOf(anAverage, h, size) {
			require.Equal(t, anAverage, b.kind)
			require.Equal(t, next, b.part.Offsets[0])
			require.Equal(t, bytes, b.offset)
			require.LessOrEqual(t, b.bytes(), size)
			require.Equal(t, h.Sizes[1:], b.part.Sizes[1:])
			require.Equal(t, h.Offsets[1:], b.part.Offsets[1:])
			next, bytes = next+b.part.Sizes[0], bytes+int64(b.bytes())
		}
		require.Equal(t, 4*h.NumElements(), bytes)
		require.Equal(t, offsets, h.Offsets)
		require.Equal(t, sizes, h.Sizes)
	})
}

// Room for a copy is there to be written to, to its last byte, and goes away.
func TestRoomForCopies(t *testing.T) {
	for _, bytes := range []int{0, 1, 4096, 64<<20 + 5} {
		p, err := (&copies{}).room(bytes)
		require.NoError(t, err)
		require.Len(t, p.bytes, bytes)
		if bytes > 0 {
			p.bytes[bytes-1] = 1
		}
		require.NoError(t, p.free())
	}
	_, err := (&copies{}).room(1 << 50)
	require.ErrorContains(t, err, "save with --async off")
}

// Copies that do not fit are refused before any step, and where none are made nothing is.
func TestCopiesThatDoNotFit(t *testing.T) {
	data := numbers(t)
	for mode, want := range map[string]string{manifest.AsyncOff: "", manifest.AsyncThread: "save with --async off", manifest.AsyncPinned: "save with --async off"} {
		r, err := open(savingJob(t, data, 1, manifest.Checkpoint{Folder: t.TempDir(), AsyncMode: mode}), quiet(), false)
		require.NoError(t, err)
		defer r.close()
		require.NoError(t, r.fitsCopies(0, 1<<40))
		require.NoError(t, r.fitsCopies(0, 0))
		if err := r.fitsCopies(0, 1000); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}

// In every mode each step's folder has the bits of one that training waited for, and training those of a run that saves
// nothing.
func TestGPUSavesInEveryMode(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	run := func(c manifest.Checkpoint) []record {
		return stepsWith(t, savingJob(t, data, 6, c), func(o *Options) { o.Device, o.Deterministic = "cuda", true })
	}
	want := run(manifest.Checkpoint{})
	waited := manifest.Checkpoint{Folder: t.TempDir(), Interval: 1}
	require.Equal(t, want, run(waited))
	for _, mode := range []string{manifest.AsyncThread, manifest.AsyncPinned} {
		c := manifest.Checkpoint{Folder: t.TempDir(), Interval: 1, AsyncMode: mode}
		require.Equal(t, want, run(c), mode)
		for n := 1; n <= 6; n++ {
			require.Equal(t, tensorsOf(t, checkpoint.StepDir(waited.Folder, n)), tensorsOf(t, checkpoint.StepDir(c.Folder, n)), "%s step %d", mode, n)
		}
		require.Equal(t, want, run(manifest.Checkpoint{Folder: t.TempDir(), Interval: 4, KeepLatestK: 2, AsyncMode: mode}), mode)
	}
}

// A copy of 18 GB takes longer than the next step, whose update waits for it: all of the copy is of its own step.
func TestGPUCopiesAreOfTheirStep(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, mode := range []string{manifest.AsyncThread, manifest.AsyncPinned} {
		m := savingJob(t, data, 10, manifest.Checkpoint{Folder: t.TempDir(), AsyncMode: mode})
		c := &m.Model.Config // llama3-1b, untied
		c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden, c.VocabSize = 2048, 16, 32, 8, 64, 8192, 128256
		m.Training.MixedPrecisionParam = "bfloat16"
		m.Derive()
		onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
			step := func() time.Duration {
				began := time.Now()
				_, err := k.step(ctx, ctx)
				require.NoError(t, err)
				return time.Since(began)
			}
			now := func() map[string][]byte {
				here, err := g.take(manifest.AsyncOff)
				require.NoError(t, err)
				return pieces(t, k, here)
			}
			first, second := step(), step()
			for range 2 { // the second into the room of the first
				want := now()
				began := time.Now()
				taken, err := g.take(mode)
				require.NoError(t, err)
				stalled, beside := time.Since(began), step()
				require.NoError(t, taken.wait())
				copied := time.Since(began)
				require.True(t, maps.EqualFunc(want, pieces(t, k, taken), bytes.Equal), mode)
				require.False(t, maps.EqualFunc(want, now(), bytes.Equal), mode)
				t.Logf("%s: steps of %v, %v; training stalled %v, then a step of %v, copied after %v; room took %v, pinning %v",
					mode, first, second, stalled, beside, copied, g.copies.making, g.copies.pinning)
			}
		})
	}
}

// pieces are the ends of what is saved of each tensor.
func pieces(t *testing.T, k *rank, from snapshot) map[string][]byte {
	out := map[string][]byte{}
	for _, h := range k.held {
		for _, kind := range stateKinds(true) {
			all := 4 * h.NumElements()
			end := make([]byte, min(all, 1<<20))
			require.NoError(t, from.read(kind, h.Param.FQN, end, all-int64(len(end))))
			out[kind.String()+" "+h.Param.FQN] = end
		}
	}
	return out
}

// What a GPU is given, seed or step, it gives back: the same bytes.
func TestGPUGivesBackWhatItWasGiven(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, d := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		m := tinyJob(t, data)
		r, err := open(m, quiet(), false)
		require.NoError(t, err)
		state, err := SeedState(r.job.Params, m.Training.Seed, Philox, d, 3)
		require.NoError(t, err)
		seed := t.TempDir()
		require.NoError(t, checkpoint.Write(context.Background(), seed, state, checkpoint.WriteOptions{}))
		m.Checkpoint = &manifest.Checkpoint{InitialLoadPath: seed}
		back := tensorsOf(t, savedByGPU(t, m))
		for fqn, want := range tensorsOf(t, seed) {
			if d == dtype.BFloat16 {
				require.Equal(t, want, rounded(back[fqn], "bfloat16"), fqn)
				continue
			}
			require.Equal(t, want, back[fqn], fqn)
			require.Equal(t, string(make([]byte, len(want))), back[moment(fqn, "exp_avg")], fqn)
		}
	}
	folder := t.TempDir()
	steps(t, savingJob(t, data, 3, manifest.Checkpoint{Folder: folder}))
	m := savingJob(t, data, 10, manifest.Checkpoint{Folder: folder})
	require.Equal(t, tensorsOf(t, checkpoint.StepDir(folder, 3)), tensorsOf(t, savedByGPU(t, m)))
}

// savedByGPU is the folder of what a GPU was loaded with, before any step.
func savedByGPU(t *testing.T, m *manifest.Manifest) string {
	o := quiet()
	o.Device = "cuda"
	r, err := open(m, o, false)
	require.NoError(t, err)
	defer r.close()
	r.train, err = r.openData(context.Background(), m.Data.Paths, nil, true)
	require.NoError(t, err)
	defer r.train.Close()
	m.Checkpoint.Folder = t.TempDir()
	require.NoError(t, r.start(context.Background(), func(ctx context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		if err != nil {
			return err
		}
		if err := k.save(ctx, true); err != nil {
			return err
		}
		return k.machine.close()
	}))
	return checkpoint.StepDir(m.Checkpoint.Folder, r.left.Step)
}
