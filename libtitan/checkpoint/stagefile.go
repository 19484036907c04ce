package checkpoint

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"titan/libtitan/exit"
)

// fileStage is a file in the making, beside its final name. It becomes that file by one rename, or goes away.
type fileStage struct {
	final string
	file  *os.File // locked: no other process may write there
}

// newFileStage makes the hidden file next to final, and the folders above. A leftover of an earlier run that was killed
// is written over. Unless replace is set, a final that exists is an error.
func newFileStage(final string, replace bool) (*fileStage, error) {
	final = filepath.Clean(final)
	if err := freeFile(final, replace); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o777); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(partialName(final), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0o666)
	if err != nil {
		return nil, err
	}
	err = own(f, partialName(final), final)
	if err == nil {
		err = f.Truncate(0)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return &fileStage{final, f}, nil
}

// freeFile refuses to replace a file, unless that is wanted; what is no plain file, such as a device or a folder, is
// never replaced.
func freeFile(path string, replace bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return exit.Input.Errorf("checkpoint %s: it exists and is no plain file: choose another name", path)
	case !replace:
		return exit.Input.Errorf("checkpoint %s: the file exists: choose another, remove it, or replace it with --force", path)
	}
	return nil
}

// commit gives the file, which is flushed, its name, unless ctx is cancelled.
func (s *fileStage) commit(ctx context.Context) error {
	err := ctx.Err()
	if err == nil {
		err = os.Rename(s.file.Name(), s.final)
	}
	if err != nil {
		s.discard()
		return err
	}
	s.file.Close() // flushed before
	return syncPath(filepath.Dir(s.final))
}

func (s *fileStage) discard() {
	os.Remove(s.file.Name())
	s.file.Close()
}
