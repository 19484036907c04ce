package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

func writeStep(t *testing.T, folder string, n int) {
	s := State{Tensors: []Tensor{{FQN: "w", DType: dtype.Float32, Shape: []int64{4}, Chunks: Whole([]int64{4}, func([]byte, int64) error { return nil })}}}
	require.NoError(t, Write(context.Background(), StepDir(folder, n), s, WriteOptions{Replace: true}))
}

func names(t *testing.T, folder string) (out []string) {
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestPrune(t *testing.T) {
	for _, c := range []struct {
		step, keep int
		want       []string
	}{
		{12, 0, []string{"step-0", "step-12", "step-15", "step-3", "step-4", "step-9", "step-x"}},
		{12, 2, []string{"step-0", "step-12", "step-15", "step-4", "step-9", "step-x"}}, // 4 is incomplete
		{9, 2, []string{"step-0", "step-12", "step-15", "step-3", "step-4", "step-9", "step-x"}},
		{15, 9, []string{"step-0", "step-12", "step-15", "step-3", "step-4", "step-9", "step-x"}},
	} {
		folder := t.TempDir()
		for _, n := range []int{0, 3, 9, 12, 15} {
			writeStep(t, folder, n)
		}
		for _, name := range []string{"step-4", "step-x", ".step-3.partial"} { // the last of a killed process
			require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, ".step-3.partial", "__0_0.distcp"), nil, 0o644))
		require.NoError(t, Prune(folder, c.step, c.keep))
		require.NoError(t, Sweep(folder))
		require.Equal(t, c.want, names(t, folder))
	}
	require.NoError(t, Prune(filepath.Join(t.TempDir(), "none"), 1, 2))
}

// Only what nobody is writing is swept, and only steps in the making.
func TestSweep(t *testing.T) {
	folder := t.TempDir()
	busy, err := newStage(StepDir(folder, 7), false)
	require.NoError(t, err)
	for _, name := range []string{".step-8.partial", ".other.partial", "step-9.partial"} {
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(folder, ".step-1.partial"), nil, 0o644)) // no folder
	require.NoError(t, Sweep(folder))
	require.Equal(t, []string{".other.partial", ".step-1.partial", ".step-7.partial", "step-9.partial"}, names(t, folder))
	busy.discard()
	require.NoError(t, Sweep(filepath.Join(folder, "none")))
}
