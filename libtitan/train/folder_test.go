package train

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
)

// A folder that cannot be written in is refused before the first step, by a dry run too, and a try leaves nothing.
func TestFoldersAreTriedBeforeTheFirstStep(t *testing.T) {
	dir, data := t.TempDir(), numbers(t)
	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	for folder, why := range map[string]string{
		"/proc/x/y":                  "nothing can be made in /proc: no such file or directory",
		file:                         file,
		filepath.Join(file, "x"):     file,
		filepath.Join(file, "x/y/z"): file,
	} {
		m := savingJob(t, data, 3, manifest.Checkpoint{Folder: folder})
		stepped := false
		o := quiet()
		o.Progress = func(int64) { stepped = true }
		err := Run(context.Background(), m, o)
		require.ErrorContains(t, err, why)
		require.Equal(t, int(exit.Input), exit.Code(err))
		require.EqualError(t, DryRun(context.Background(), m, quiet(), o.Console, o.Console), err.Error())
		require.False(t, stepped)
	}
	require.NoError(t, writable(filepath.Join(dir, "a/b/c")))
	require.Equal(t, []string{"file"}, stepFolders(t, dir))
}

// A folder without permission to write in, or to look into, is no place for a run. Root, who may do anything, looks as nobody.
func TestFolderWithoutPermission(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	closed, shut := filepath.Join(dir, "closed"), filepath.Join(dir, "shut")
	for folder, mode := range map[string]os.FileMode{closed: 0o555, shut: 0} {
		require.NoError(t, os.Mkdir(folder, mode))
	}
	if os.Geteuid() == 0 {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		require.NoError(t, syscall.Setfsuid(65534)) // of this thread alone
		defer func() { require.NoError(t, syscall.Setfsuid(0)) }()
	}
	require.ErrorContains(t, writable(filepath.Join(closed, "x")), "nothing can be made in "+closed+": permission denied")
	require.ErrorContains(t, writable(filepath.Join(shut, "x/y")), "permission denied")
}

// Where a checkpoint will not fit is said before the first step.
func TestRoomForACheckpoint(t *testing.T) {
	m := savingJob(t, numbers(t), 3, manifest.Checkpoint{Folder: filepath.Join(t.TempDir(), "a/b")})
	var log strings.Builder
	o := quiet()
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	r := &run{Options: o, job: &parallel.Job{Manifest: m}}
	r.checkRoom(m.Checkpoint.Folder)
	require.Empty(t, log.String())
	m.Model.Config.VocabSize = 1 << 40
	r.checkRoom(m.Checkpoint.Folder)
	require.Contains(t, log.String(), "TiB, its disk has ")
}
