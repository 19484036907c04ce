package checkpoint

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"titan/libtitan/exit"
)

// Source is a checkpoint of any format, open for reading. Its methods may be called from several goroutines; their
// errors name the file and the item.
type Source interface {
	Name() string // the path that was opened
	Format() Format
	Items() []Item // by name; the source's own: do not change it

	// ReadRegion fills dst with a box of a tensor, row-major and little-endian.
	ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error

	// Object reads a Python value, as [Reader.Object] has it.
	Object(fqn string) (any, error)

	// ObjectZip is an object as a torch.save zip of its own, which may hold classes that Object refuses.
	ObjectZip(fqn string) ([]byte, error)

	Close() error
}

// Format is a way of storing a checkpoint.
type Format string

// The formats.
const (
	DCP              Format = "dcp"         // a folder with .metadata
	SafetensorsFiles Format = "safetensors" // a file, or a folder of them
	Torch            Format = "torch"       // one file by torch.save
)

// OpenSource opens a checkpoint by what it is: a DCP folder, a safetensors file, a folder of
// safetensors files, or a file by torch.save.
func OpenSource(path string) (Source, error) {
	info, err := os.Stat(path)
	switch {
	case path == "":
		return nil, exit.Usage.Errorf("checkpoint %q: %s", path, wanted)
	case path == "-":
		return nil, exit.Usage.Errorf("checkpoint %q: %s, not a stream (./- if it is called so)", path, wanted)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return nil, notThere(path)
	case err != nil:
		return nil, err
	case !info.IsDir():
		return openFile(path)
	}
	if safe, _ := filepath.Glob(filepath.Join(globEscape(path), "*.safetensors")); len(safe) > 0 && !isDCP(path) {
		return openSafeFolder(path)
	}
	r, err := Open(path)
	if err != nil {
		return nil, err
	}
	return r, nil
}

// wanted is what a checkpoint looks like.
const wanted = "want a DCP folder (it has a .metadata), a safetensors file or a folder of them, or a file by torch.save"

// notThere says what a checkpoint looks like where path is none.
func notThere(path string) error {
	return exit.Input.Errorf("checkpoint %s: no such file or folder: %s", path, wanted)
}

// openFile opens a single file by its first bytes.
func openFile(path string) (Source, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	head := make([]byte, len(legacyMagic))
	n, _ := io.ReadFull(f, head)
	switch {
	case isTorch(head[:n]):
		return openTorch(path)
	case filepath.Ext(path) != ".safetensors" && (n < 9 || head[8] != '{'): // after the header's length
		return nil, exit.Input.Errorf("checkpoint %s: neither a safetensors file nor one by torch.save", path)
	}
	return openSafeFiles(path, []string{path}, nil)
}

// isDCP reports whether a folder has DCP's metadata, of all ranks or of each.
func isDCP(dir string) bool {
	ranks, _ := filepath.Glob(filepath.Join(globEscape(dir), "__*.metadata"))
	_, err := os.Stat(filepath.Join(dir, ".metadata"))
	return dir != "" && dir != "-" && (err == nil || len(ranks) > 0)
}

// errNoObjects is the answer of a format that holds tensors alone.
var errNoObjects = errors.New("a safetensors file holds no objects")
