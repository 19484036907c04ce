package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"titan/libtitan/exit"
)

// folder is a checkpoint's folder: it opens data files once each and keeps them open.
type folder struct {
	dir  string
	mu   sync.Mutex
	open map[string]*os.File
}

// file opens a data file by the name that the metadata gives, which checkName has passed.
func (f *folder) file(name string) (*os.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if h := f.open[name]; h != nil {
		return h, nil
	}
	h, err := os.Open(filepath.Join(f.dir, name))
	if err != nil {
		return nil, err
	}
	if f.open == nil {
		f.open = map[string]*os.File{}
	}
	f.open[name] = h
	return h, nil
}

// size is a data file's length. A file that is missing or not a plain one is an error.
func (f *folder) size(name string) (int64, error) {
	info, err := os.Stat(filepath.Join(f.dir, name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, exit.Input.Errorf("file %s is missing", name)
	case err != nil:
		return 0, err
	case !info.Mode().IsRegular():
		return 0, exit.Input.Errorf("%s is no plain file", name)
	}
	return info.Size(), nil
}

// openPlain opens a plain file. Anything else is refused unopened: a pipe would wait for a writer.
func openPlain(path string) (*os.File, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, exit.Input.Errorf("checkpoint %s: no plain file", path)
	}
	return os.Open(path)
}

func (f *folder) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	for _, h := range f.open {
		err = errors.Join(err, h.Close())
	}
	f.open = nil
	return err
}

// checkName refuses a file name that could lead out of the folder.
func checkName(name string) error {
	if name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\\\x00") {
		return exit.Input.Errorf("file name %.200q would lead outside the folder", name)
	}
	return nil
}
