package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"titan/libtitan/exit"
)

// stage is a folder in the making, beside its final name. It becomes that folder by one rename, or goes away.
type stage struct {
	final, tmp string
	replace    bool
}

// newStage makes the hidden folder next to final. A leftover of an earlier run that was killed is cleared away. Unless
// replace is set, a final that exists (and is more than an empty folder) is an error.
func newStage(final string, replace bool) (*stage, error) {
	final = filepath.Clean(final)
	if !replace {
		if err := vacant(final); err != nil {
			return nil, err
		}
	}
	parent, base := filepath.Split(final)
	if err := os.MkdirAll(filepath.Clean(parent), 0o777); err != nil {
		return nil, err
	}
	s := &stage{final: final, tmp: filepath.Join(parent, "."+base+".partial"), replace: replace}
	if err := os.RemoveAll(s.tmp); err != nil {
		return nil, err
	}
	return s, os.Mkdir(s.tmp, 0o777)
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
		return exit.Input.Errorf("checkpoint: %s: the folder exists and is not empty: choose another or remove it", dir)
	}
	return nil
}

// commit makes the folder durable and gives it its name; what it replaces goes away after that.
func (s *stage) commit() error {
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

func (s *stage) discard() { os.RemoveAll(s.tmp) }

// syncPath flushes a file or a folder to the disk.
func syncPath(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync()
}
