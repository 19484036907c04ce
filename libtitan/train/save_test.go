package train

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
)

// savingJob is a tiny job of n steps, of a run of ten, that saves in folder.
func savingJob(t *testing.T, data string, n int, c manifest.Checkpoint) *manifest.Manifest {
	m := tinyJob(t, data)
	m.Training.Steps, m.LRScheduler.TotalSteps = n, &[]int{10}[0]
	m.Checkpoint = &c
	return m
}

func stepFolders(t *testing.T, folder string) (names []string) {
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// Saved from a copy while training goes on, at every step: each folder has the bits of one that ranks waited for, and a
// run goes on from it with the bits of a straight one.
func TestAsyncSavesHaveTheBitsOfTheirStep(t *testing.T) {
	data := numbers(t)
	straight := t.TempDir()
	want := steps(t, savingJob(t, data, 10, manifest.Checkpoint{Folder: straight, Interval: 1}))
	for mode, cut := range map[string]func(m *manifest.Manifest) *manifest.Manifest{
		manifest.AsyncThread: func(m *manifest.Manifest) *manifest.Manifest { return m },
		manifest.AsyncPinned: func(m *manifest.Manifest) *manifest.Manifest { return pipelined(t, m, 4, 1, "1F1B") },
	} {
		c := manifest.Checkpoint{Folder: t.TempDir(), Interval: 1, AsyncMode: mode}
		require.Equal(t, want[:5], steps(t, cut(savingJob(t, data, 5, c))), mode)
		require.Equal(t, want[5:], steps(t, cut(savingJob(t, data, 10, c))), mode)
		for n := 1; n <= 10; n++ {
			require.Equal(t, tensorsOf(t, checkpoint.StepDir(straight, n)), tensorsOf(t, checkpoint.StepDir(c.Folder, n)), "%s step %d", mode, n)
		}
	}
}

// An asynchronous save that fails ends the run at the next step or at the end, not in silence; what was saved stays.
func TestAsyncSaveThatFails(t *testing.T) {
	for _, blocked := range []int{2, 3} { // step 3 is the last, which is waited for
		folder := t.TempDir()
		inTheWay := filepath.Join(folder, fmt.Sprintf(".step-%d.partial", blocked))
		require.NoError(t, os.WriteFile(inTheWay, nil, 0o644))
		m := savingJob(t, numbers(t), 3, manifest.Checkpoint{Folder: folder, Interval: 1, AsyncMode: manifest.AsyncThread})
		err := Run(context.Background(), m, quiet())
		require.ErrorContains(t, err, fmt.Sprintf("checkpoint: step %d: ", blocked))
		r, err := checkpoint.Open(checkpoint.StepDir(folder, 1))
		require.NoError(t, err)
		r.Close()
	}
}

func TestKeepLatest(t *testing.T) {
	data := numbers(t)
	for _, mode := range []string{manifest.AsyncOff, manifest.AsyncThread} {
		c := manifest.Checkpoint{Folder: t.TempDir(), Interval: 1, KeepLatestK: 2, AsyncMode: mode}
		steps(t, savingJob(t, data, 1, manifest.Checkpoint{Folder: filepath.Join(c.Folder, "seed")}))
		require.NoError(t, os.Rename(checkpoint.StepDir(filepath.Join(c.Folder, "seed"), 1), checkpoint.StepDir(c.Folder, 0)))
		require.NoError(t, os.Remove(filepath.Join(c.Folder, "seed")))
		require.NoError(t, os.Mkdir(checkpoint.StepDir(c.Folder, 3), 0o755)) // incomplete: not ours to delete, nor counted
		steps(t, savingJob(t, data, 2, c))
		require.Equal(t, []string{"step-0", "step-1", "step-2", "step-3"}, stepFolders(t, c.Folder))
		require.NoError(t, os.Remove(checkpoint.StepDir(c.Folder, 3)))
		steps(t, savingJob(t, data, 6, c))
		require.Equal(t, []string{"step-0", "step-5", "step-6"}, stepFolders(t, c.Folder), mode)

		// Going on from an earlier step does not delete what it writes because later steps, of another attempt, are there.
		c.LoadStep, c.KeepLatestK = &[]int{5}[0], 3
		steps(t, savingJob(t, data, 6, manifest.Checkpoint{Folder: c.Folder, Interval: 1, LoadStep: c.LoadStep, KeepLatestK: 3}))
		m := savingJob(t, data, 8, c)
		c.LoadStep = nil
		steps(t, m)
		require.Equal(t, []string{"step-0", "step-6", "step-7", "step-8"}, stepFolders(t, c.Folder))
	}
}

// When a step is saved: the first if asked for, every interval, the last, and none under load_only.
func TestWhenAStepIsSaved(t *testing.T) {
	data := numbers(t)
	for want, c := range map[string]manifest.Checkpoint{
		"[step-5]":               {},
		"[step-2 step-4 step-5]": {Interval: 2},
		"[step-1 step-5]":        {FirstStep: true},
		"[]":                     {Interval: 1, FirstStep: true, LoadOnly: true},
	} {
		c.Folder = t.TempDir()
		steps(t, savingJob(t, data, 5, c))
		require.Equal(t, want, fmt.Sprint(stepFolders(t, c.Folder)))
	}
	for _, c := range []manifest.Checkpoint{{Interval: 1}, {FirstStep: true}, {KeepLatestK: 2}, {AsyncMode: manifest.AsyncThread}, {LastSaveModelOnly: true}} {
		err := Run(context.Background(), savingJob(t, data, 1, c), quiet())
		require.ErrorContains(t, err, "there is no folder to save in")
		require.Equal(t, int(exit.Usage), exit.Code(err))
		c.LoadOnly = true
		require.NoError(t, Run(context.Background(), savingJob(t, data, 1, c), quiet()))
	}
}

// The model alone, rounded: no run goes on from it by mistake, but it can be evaluated and begun from.
func TestLastSaveOfTheModelAlone(t *testing.T) {
	data := numbers(t)
	full := t.TempDir()
	steps(t, savingJob(t, data, 3, manifest.Checkpoint{Folder: full}))
	want := tensorsOf(t, checkpoint.StepDir(full, 3))
	for name, width := range map[string]int{"": 4, "float32": 4, "bfloat16": 2, "float16": 2} {
		c := manifest.Checkpoint{Folder: t.TempDir(), LastSaveModelOnly: true, ExportDType: name, Interval: 2}
		m := savingJob(t, data, 3, c)
		steps(t, m)
		dir := checkpoint.StepDir(c.Folder, 3)
		got := tensorsOf(t, dir)
		require.Len(t, got, 39)
		for fqn, bytes := range got {
			require.Equal(t, rounded(want[fqn], name), bytes, fqn)
			require.Len(t, bytes, len(want[fqn])/4*width)
		}
		require.NoError(t, Run(context.Background(), m, quiet()), "nothing to do")
		_, err := Eval(context.Background(), m, 1, quiet())
		require.NoError(t, err)
		err = Run(context.Background(), savingJob(t, data, 4, c), quiet())
		require.ErrorContains(t, err, "it holds the model alone")
		require.Equal(t, int(exit.Input), exit.Code(err))

		next := savingJob(t, data, 1, manifest.Checkpoint{Folder: t.TempDir(), InitialLoadPath: dir})
		require.Equal(t, 1, steps(t, next)[0].Step, "its step is not counted on")
		c.LoadStep = &[]int{2}[0]
		require.Equal(t, 3, steps(t, savingJob(t, data, 3, c))[0].Step)
	}
}

// rounded is float32's bytes as the dtype's.
func rounded(bytes, name string) string {
	narrow := map[string]func(float32) uint16{"bfloat16": dtype.BF16, "float16": dtype.F16}[name]
	if narrow == nil {
		return bytes
	}
	var out []byte
	for i := 0; i < len(bytes); i += 4 {
		bits := uint32(bytes[i]) | uint32(bytes[i+1])<<8 | uint32(bytes[i+2])<<16 | uint32(bytes[i+3])<<24
		h := narrow(math.Float32frombits(bits))
		out = append(out, byte(h), byte(h>>8))
	}
	return string(out)
}

// An infinite weight ends the run in its step, on every rank, and pushes out no sound step. So does one that no token
// takes, of byte 0, which neither loss nor norm shows.
func TestPoisonPushesOutNoStep(t *testing.T) {
	data := numbers(t)
	for fqn, want := range map[string]string{
		"layers.2.feed_forward.w2.weight": "step 3: loss NaN, grad_norm NaN: not finite (the first bad one is the parameter of layers.2.feed_forward.w2.weight)",
		"tok_embeddings.weight":           "step 3: the parameter of tok_embeddings.weight is not finite: nothing was saved",
	} {
		for _, mode := range []string{manifest.AsyncOff, manifest.AsyncThread} {
			job := func(n int, c manifest.Checkpoint) *manifest.Manifest {
				m := meshJob(t, data, manifest.MeshDims{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}, 2)
				m.Training.Steps, m.Checkpoint = n, &c
				return m
			}
			c := manifest.Checkpoint{Folder: t.TempDir(), Interval: 1, KeepLatestK: 2, AsyncMode: mode}
			steps(t, job(2, c))
			poison(t, checkpoint.StepDir(c.Folder, 2), checkpoint.StepDir(c.Folder, 3), fqn)
			o := quiet()
			o.LogFreq = 10
			err := Run(context.Background(), job(6, c), o)
			require.ErrorContains(t, err, want)
			require.Equal(t, int(exit.No), exit.Code(err))
			require.Equal(t, []string{"step-1", "step-2", "step-3"}, stepFolders(t, c.Folder))
		}
	}
}

// On any mesh each element is saved by one rank, and no copy of a part of the model saves much more than the others.
func TestEachElementIsSavedOnceAndEvenly(t *testing.T) {
	data := numbers(t)
	for _, d := range meshes() {
		job, err := parallel.New(meshJob(t, data, d, 2))
		require.NoError(t, err)
		times, saved := map[string][]int{}, make([]int64, job.NumRanks())
		for rank := range saved {
			for _, h := range job.Held(rank) {
				fqn := h.Param.FQN
				if times[fqn] == nil {
					times[fqn] = make([]int, h.Param.NumElements())
				}
				if h.First {
					saved[rank] += h.NumElements()
					count(times[fqn], h.Param.Shape, h.Offsets, h.Sizes)
				}
			}
		}
		for fqn, n := range times {
			require.Equal(t, slices.Repeat([]int{1}, len(n)), n, "%v: %s", d, fqn)
		}
		if d.PP == 1 {
			even := float64(len(slices.Concat(slices.Collect(maps.Values(times))...))) / float64(len(saved))
			require.InEpsilon(t, even, slices.Max(saved), 0.15, "%v: %v", d, saved)
		}
	}
}

// count adds one to the elements of a box.
func count(times []int, shape, offsets, sizes []int64) {
	if len(shape) == 0 {
		times[0]++
		return
	}
	row := int64(len(times)) / shape[0]
	for i := range sizes[0] {
		count(times[(offsets[0]+i)*row:][:row], shape[1:], offsets[1:], sizes[1:])
	}
}
