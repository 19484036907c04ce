package checkpoint

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"titan/libtitan/exit"
)

// readMetadata reads .metadata, or the __N.metadata files that each rank leaves when it saves alone.
func readMetadata(dir string) (*metadata, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, exit.Input.Errorf("checkpoint %s: a file, not a DCP folder", dir)
	}
	md, err := readMetadataFile(filepath.Join(dir, ".metadata"))
	if !errors.Is(err, fs.ErrNotExist) {
		return md, err
	}
	ranks, err := filepath.Glob(filepath.Join(globEscape(dir), "__*.metadata"))
	if err != nil || len(ranks) == 0 {
		return nil, noMetadata(dir)
	}
	merged := newMetadata()
	for _, path := range ranks {
		md, err := readMetadataFile(path)
		if err == nil {
			err = merged.merge(md)
		}
		if err != nil {
			return nil, err
		}
	}
	return merged, nil
}

// globEscape takes the pattern characters of a folder's name literally.
func globEscape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`).Replace(dir)
}

func readMetadataFile(path string) (*metadata, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxPickle {
		return nil, exit.Input.Errorf("checkpoint %s: no plain file of at most %d bytes", path, maxPickle)
	}
	data, err := readString(path, info.Size())
	if err != nil {
		return nil, err
	}
	md, err := parseMetadata(data)
	if err != nil {
		return nil, exit.Input.Errorf("checkpoint %s: %w", path, err)
	}
	return md, nil
}

// readString reads a file as a string without a second copy of it.
func readString(path string, size int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	var b strings.Builder
	b.Grow(int(size))
	_, err = f.WriteTo(&b)
	return b.String(), err
}

// noMetadata says what dir is instead of a complete checkpoint.
func noMetadata(dir string) error {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		return notThere(dir)
	case err != nil:
		return err
	}
	if complete, _, _ := steps(dir); len(complete) > 0 {
		return exit.Input.Errorf("checkpoint %s: a folder of checkpoints: name one of them, such as %s", dir, StepDir(dir, slices.Max(complete)))
	}
	if inner := foldersInside(dir); len(inner) > 0 {
		return exit.Input.Errorf("checkpoint %s: no .metadata: did you mean %s?", dir, first(3, inner))
	}
	for _, e := range entries {
		switch {
		case isTorchName(e.Name()):
			return exit.Input.Errorf("checkpoint %s: a folder of files by torch.save, not a DCP folder (no .metadata): name one of them, such as %s", dir, filepath.Join(dir, e.Name()))
		case strings.HasSuffix(e.Name(), ".safetensors"):
			return exit.Input.Errorf("checkpoint %s: a folder of safetensors files, not a DCP folder (no .metadata)", dir)
		case strings.HasSuffix(e.Name(), ".distcp"):
			return exit.Input.Errorf("checkpoint %s: incomplete: there are data files but no .metadata, which is written last", dir)
		}
	}
	return exit.Input.Errorf("checkpoint %s: no .metadata: not a DCP folder, or an incomplete one", dir)
}

// foldersInside lists the DCP folders directly in dir.
func foldersInside(dir string) (inner []string) {
	found, _ := filepath.Glob(filepath.Join(globEscape(dir), "*", ".metadata"))
	for _, path := range found {
		inner = append(inner, filepath.Dir(path))
	}
	return inner
}

// isTorchName reports whether a file is called as torch.save's are.
func isTorchName(name string) bool {
	return slices.Contains([]string{".pt", ".pth"}, filepath.Ext(name))
}

// merge adds what another rank saved. A chunk that both saved is taken once.
func (m *metadata) merge(o *metadata) error {
	for fqn, t := range o.tensors {
		have := m.tensors[fqn]
		if m.objects[fqn] != nil {
			return exit.Input.Errorf("checkpoint: %s: ranks disagree: a tensor and a bytes item", fqn)
		}
		if have == nil {
			m.tensors[fqn] = t
			continue
		}
		if have.dtype != t.dtype || !slices.Equal(have.shape, t.shape) {
			return exit.Input.Errorf("checkpoint: %s: ranks disagree: %s %v and %s %v", fqn, have.dtype, have.shape, t.dtype, t.shape)
		}
		for i, c := range t.chunks {
			same := func(x Box) bool { return slices.Equal(x.Offsets, c.Offsets) && slices.Equal(x.Sizes, c.Sizes) }
			if !slices.ContainsFunc(have.chunks, same) {
				have.chunks = append(have.chunks, c)
				have.at = append(have.at, t.at[i])
			}
		}
	}
	for fqn, at := range o.objects {
		if m.tensors[fqn] != nil {
			return exit.Input.Errorf("checkpoint: %s: ranks disagree: a bytes item and a tensor", fqn)
		}
		if m.objects[fqn] == nil {
			m.objects[fqn] = at
		}
	}
	for fqn, p := range o.paths {
		if m.paths[fqn] == nil {
			m.paths[fqn] = p
		}
	}
	return nil
}
