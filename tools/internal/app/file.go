package app

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"titan/libtitan/exit"
)

// WriteFile makes path hold what write writes, whole or not at all: the bytes go to a temporary file in the
// same folder, which is renamed over path when they are all on disk. A link stays and its target is replaced;
// a device or a pipe is written to directly. The file keeps its permissions, a new one gets 0666 less the umask.
func WriteFile(path string, write func(io.Writer) error) (err error) {
	path, temp, mode := place(path)
	if temp == "" {
		return writeTo(path, path, os.O_WRONLY, 0, write)
	}
	defer func() {
		if err != nil {
			os.Remove(temp)
		}
	}()
	if err := writeTo(temp, path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode, write); err != nil {
		return err
	}
	return os.Rename(temp, path)
}

// CheckFile makes sure, before long work, that [WriteFile] can write the file that a flag names: it makes the temporary
// file and removes it. A device or a pipe is not tried, for its reader would see that.
func CheckFile(flag, path string) error {
	dir := filepath.Dir(path)
	if info, err := os.Stat(dir); err != nil || !info.IsDir() {
		return exit.Input.Errorf("%s %s: %s is not a folder", flag, path, dir)
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return exit.Input.Errorf("%s %s: it is a folder: name a file", flag, path)
	}
	_, temp, mode := place(path)
	if temp == "" {
		return nil
	}
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE, mode)
	if err != nil {
		return exit.Input.Errorf("%s %s: %w", flag, path, errors.Unwrap(err))
	}
	return errors.Join(f.Close(), os.Remove(temp))
}

// place finds where the bytes of path go: its target where it is a link, and the temporary file beside that, "" where
// it is written to directly, with its permissions.
func place(path string) (target, temp string, mode fs.FileMode) {
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target
	}
	mode = fs.FileMode(0o666)
	if old, err := os.Stat(path); err == nil {
		mode = old.Mode().Perm()
		if !old.Mode().IsRegular() {
			return path, "", mode
		}
	}
	return path, filepath.Join(filepath.Dir(path), fmt.Sprintf(".%s.%d.tmp", filepath.Base(path), os.Getpid())), mode
}

// writeTo writes the file at path; errors call it name.
func writeTo(path, name string, flag int, mode fs.FileMode, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return named(err, name)
	}
	if err := write(namedFile{f, name}); err != nil {
		f.Close()
		return err
	}
	if flag&os.O_CREATE != 0 { // a pipe cannot be synced
		if err := f.Sync(); err != nil {
			f.Close()
			return err
		}
	}
	return f.Close()
}

// namedFile is a file whose errors of writing call it name.
type namedFile struct {
	f    *os.File
	name string
}

func (n namedFile) Write(p []byte) (int, error) {
	written, err := n.f.Write(p)
	return written, named(err, n.name)
}

// named has an error of a file call it name.
func named(err error, name string) error {
	var at *fs.PathError
	if !errors.As(err, &at) {
		return err
	}
	return &fs.PathError{Op: at.Op, Path: name, Err: at.Err}
}
