package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"titan/libtitan/exit"
)

// stage is a folder in the making, beside its final name. It becomes that folder by one rename, or goes away.
type stage struct {
	final, tmp string
	replace    bool
	lock       *os.File // of the folder in the making: no other process may write there
}

// newStage makes the hidden folder next to final. A leftover of an earlier run that was killed is cleared away. Unless
// replace is set, a final that exists (and is more than an empty folder) is an error.
func newStage(final string, replace bool) (*stage, error) {
	final = filepath.Clean(final)
	if info, err := os.Lstat(final); err == nil && !info.IsDir() {
		return nil, exit.Input.Errorf("checkpoint: %s: it exists and is no folder: choose another name", final)
	}
	check := vacant
	if replace {
		check = ours
	}
	if err := check(final); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o777); err != nil {
		return nil, err
	}
	s := &stage{final: final, tmp: partialName(final), replace: replace}
	return s, s.claim()
}

const partialSuffix = ".partial"

// partialName is where a folder is made, beside its final name.
func partialName(final string) string {
	parent, base := filepath.Split(final)
	return filepath.Join(parent, "."+base+partialSuffix)
}

// claim makes the folder in the making this process's, and empty. Another process that is writing there holds it by a
// lock, which ends with the process.
func (s *stage) claim() error {
	if err := os.Mkdir(s.tmp, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	lock, err := os.Open(s.tmp)
	if err == nil {
		err = own(lock, s.tmp, s.final)
	}
	if err == nil {
		err = clearFolder(s.tmp)
	}
	if err != nil {
		lock.Close()
		return err
	}
	s.lock = lock
	return nil
}

// own locks what is in the making under the name tmp, and makes sure that it still stands there.
func own(lock *os.File, tmp, final string) error {
	busy := exit.Input.Errorf("checkpoint: %s: another process is writing it: wait for that one, or choose another name", final)
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return busy
	}
	named, err := os.Stat(tmp)
	if err != nil {
		return busy
	}
	if held, err := lock.Stat(); err != nil || !os.SameFile(named, held) {
		return busy
	}
	return nil
}

// clearFolder empties a folder.
func clearFolder(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		if err == nil {
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	}
	return err
}

// ours checks that a folder that is to be replaced is a checkpoint, or nothing: it would be deleted.
func ours(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !slices.Contains([]string{".metadata", ".metadata.tmp", checksumName, safeIndex, configFile}, name) &&
			!slices.Contains([]string{".distcp", ".metadata", ".safetensors"}, filepath.Ext(name)) {
			return exit.Input.Errorf("checkpoint: %s: %s in it is not of a checkpoint: it is not replaced", dir, name)
		}
	}
	return err
}

// vacant checks that nothing would be lost at dir.
func vacant(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case len(entries) > 0:
		return exit.Input.Errorf("checkpoint: %s: the folder exists and is not empty: choose another, remove it, or replace a checkpoint with --force", dir)
	}
	return nil
}

// commit makes the folder durable and gives it its name; what it replaces goes away after that. Until then a cancelled
// context still ends the work.
func (s *stage) commit(ctx context.Context) error {
	defer s.lock.Close()
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := syncPath(s.tmp); err != nil {
		return err
	}
	if err := s.rename(); err != nil {
		return fmt.Errorf("checkpoint: naming %s: %w", s.final, err)
	}
	return syncPath(filepath.Dir(s.final))
}

func (s *stage) rename() error {
	err := unix.Rename(s.tmp, s.final) // an empty folder may stand there
	if err == nil || !s.replace {
		return err
	}
	// Both names change hands at once; where the file system cannot do that, the old folder steps aside first.
	err = unix.Renameat2(unix.AT_FDCWD, s.tmp, unix.AT_FDCWD, s.final, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) {
		return s.stepAside()
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(s.tmp)
}

func (s *stage) stepAside() error {
	old := s.tmp + ".old"
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := os.Rename(s.final, old); err != nil {
		return err
	}
	if err := os.Rename(s.tmp, s.final); err != nil {
		return errors.Join(err, os.Rename(old, s.final))
	}
	return os.RemoveAll(old)
}

func (s *stage) discard() {
	os.RemoveAll(s.tmp)
	s.lock.Close()
}

// syncPath flushes a file or a folder to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
