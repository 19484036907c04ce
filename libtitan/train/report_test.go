package train

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// fullAfter takes n writes, and has no room for another.
type fullAfter struct{ n int }

func (f *fullAfter) Write(p []byte) (int, error) {
	if f.n--; f.n < 0 {
		return 0, syscall.ENOSPC
	}
	return len(p), nil
}

// A run whose metrics cannot be written, for the disk is full or the reader has gone, ends as by an interrupt: after the
// next step, which is saved, on all ranks; after the last step where there is no next one.
func TestMetricsThatCannotBeWritten(t *testing.T) {
	data := numbers(t)
	closed, gone := io.Pipe()
	require.NoError(t, closed.CloseWithError(syscall.EPIPE))
	for _, c := range []struct {
		metrics io.Writer
		step    int // where the run ends
		why     string
	}{
		{&fullAfter{1}, 3, "no space left on device"},
		{&fullAfter{3}, 4, "no space left on device"},
		{gone, 2, "broken pipe"},
	} {
		folder := t.TempDir()
		m := pipelined(t, savingJob(t, data, 4, manifest.Checkpoint{Folder: folder}), 2, 1, "1F1B")
		o := quiet()
		o.Metrics = c.metrics
		dir := checkpoint.StepDir(folder, c.step)
		err := Run(context.Background(), m, o)
		require.EqualError(t, err, fmt.Sprintf("metrics: %s: stopped after step %d, saved in %s: the same pipeline goes on from there", c.why, c.step, dir))
		require.Equal(t, int(exit.Lost), exit.Code(err))
		require.Equal(t, []string{fmt.Sprintf("step-%d", c.step)}, stepFolders(t, folder))
	}
}
