package checkpoint

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"titan/libtitan/exit"
)

const safeIndex = "model.safetensors.index.json"

// safeSource is one or more safetensors files read as one checkpoint. A tensor may lie in several, as the shards that
// torch's Hugging Face writer leaves.
type safeSource struct {
	name   string
	files  []*safetensorsFile
	items  []Item
	parts  map[string][]safePart
	byName map[string]int
}

// safePart is a box of a tensor, in one file.
type safePart struct {
	box  Box
	file int
	at   safeTensor
}

// safeIndexFile is a model.safetensors.index.json.
type safeIndexFile struct {
	Metadata struct {
		TotalSize int64 `json:"total_size"` // bytes of tensors
	} `json:"metadata"`
	WeightMap map[string]string `json:"weight_map"` // tensor -> file
}

func readSafeIndex(path string) (*safeIndexFile, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxSafeHeader {
		return nil, exit.Input.Errorf("checkpoint %s: no plain file of at most %d bytes", path, maxSafeHeader)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var index safeIndexFile
	if err := json.Unmarshal(b, &index); err != nil {
		return nil, exit.Input.Errorf("checkpoint %s: not an index of safetensors files: %v", path, err)
	}
	return &index, nil
}

// files lists the files that an index names, each once. It is the files that say what they hold; the index is held
// against them by openSafeFiles.
func (x *safeIndexFile) files(dir string) ([]string, error) {
	var out []string
	for name, file := range x.WeightMap {
		if err := checkName(file); err != nil {
			return nil, exit.Input.Errorf("checkpoint %s: %s: %w", filepath.Join(dir, safeIndex), name, err)
		}
		if p := filepath.Join(dir, file); !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	slices.Sort(out)
	return out, nil
}

// openSafeFolder opens a folder's safetensors files: those that its index names, or all.
func openSafeFolder(dir string) (Source, error) {
	index, err := readSafeIndex(filepath.Join(dir, safeIndex))
	var paths []string
	switch {
	case err == nil:
		paths, err = index.files(dir)
	case errors.Is(err, fs.ErrNotExist):
		paths, err = filepath.Glob(filepath.Join(globEscape(dir), "*.safetensors"))
	}
	if err != nil {
		return nil, err
	}
	return openSafeFiles(dir, paths, index)
}

// openSafeFiles opens the files of one checkpoint; name is the file or folder that a person gave, index may be nil.
func openSafeFiles(name string, paths []string, index *safeIndexFile) (Source, error) {
	s := &safeSource{name: name, parts: map[string][]safePart{}, byName: map[string]int{}}
	if err := s.open(paths, index); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *safeSource) open(paths []string, index *safeIndexFile) error {
	for i, path := range paths {
		f, err := openSafetensors(path)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		if err := s.add(i, f); err != nil {
			return exit.Input.Errorf("safetensors %s: %w", path, err)
		}
	}
	for name, parts := range s.parts {
		it, err := joinParts(name, parts)
		if err != nil {
			return exit.Input.Errorf("checkpoint %s: %s: %w", s.name, name, err)
		}
		s.items = append(s.items, it)
	}
	slices.SortFunc(s.items, func(a, b Item) int { return strings.Compare(a.FQN, b.FQN) })
	for i, it := range s.items {
		s.byName[it.FQN] = i
	}
	if index == nil {
		return nil
	}
	return s.checkIndex(index)
}

// add files the tensors of a file, each at the offsets that DCP_SHARDING_INFO gives it, or at 0.
func (s *safeSource) add(file int, f *safetensorsFile) error {
	var info map[string]struct {
		Offsets []int64 `json:"saved_offsets"`
	}
	if text := f.Metadata["DCP_SHARDING_INFO"]; text != "" {
		if err := json.Unmarshal([]byte(text), &info); err != nil {
			return fmt.Errorf("DCP_SHARDING_INFO: %w", err)
		}
	}
	for _, t := range f.Tensors {
		offsets := info[t.Name].Offsets
		if offsets == nil {
			offsets = make([]int64, len(t.Shape))
		}
		if len(offsets) != len(t.Shape) || slices.ContainsFunc(offsets, func(o int64) bool { return o < 0 || o > maxFile }) {
			return fmt.Errorf("%.200q: offsets %v for a shape of %v", t.Name, offsets, t.Shape)
		}
		s.parts[t.Name] = append(s.parts[t.Name], safePart{Box{offsets, t.Shape}, file, t})
	}
	return nil
}

// joinParts is the tensor that the parts tile. Its shape is nowhere written: it is where the parts end.
func joinParts(name string, parts []safePart) (Item, error) {
	slices.SortFunc(parts, func(a, b safePart) int {
		return cmp.Or(slices.Compare(a.box.Offsets, b.box.Offsets), cmp.Compare(a.file, b.file))
	})
	first := parts[0].at
	it := Item{FQN: name, Kind: KindTensor, DType: first.DType, Shape: make([]int64, len(first.Shape))}
	for _, p := range parts {
		if p.at.DType != it.DType || len(p.box.Sizes) != len(it.Shape) {
			return it, fmt.Errorf("parts of %s %v and of %s %v", first.DType, first.Shape, p.at.DType, p.at.Shape)
		}
		for d, n := range p.box.Sizes {
			it.Shape[d] = max(it.Shape[d], p.box.Offsets[d]+n)
		}
		it.Chunks = append(it.Chunks, p.box)
		it.Files = append(it.Files, p.file)
	}
	var err error
	if it.Bytes, err = byteSize(it.Shape, it.DType.Size()); err != nil {
		return it, err
	}
	return it, checkTiling(it.Shape, it.Chunks)
}

// checkIndex holds an index against the files: each name where it says, and none besides.
func (s *safeSource) checkIndex(index *safeIndexFile) error {
	path := filepath.Join(s.name, safeIndex)
	for name, file := range index.WeightMap {
		holds := func(p safePart) bool { return filepath.Base(s.files[p.file].path) == file }
		if !slices.ContainsFunc(s.parts[name], holds) {
			return exit.Input.Errorf("checkpoint %s: weight_map has %s in %s, which does not hold it", path, name, file)
		}
	}
	for name := range s.parts {
		if index.WeightMap[name] == "" {
			return exit.Input.Errorf("checkpoint %s: weight_map lacks %s, which %s holds", path, name, s.files[s.parts[name][0].file].path)
		}
	}
	return nil
}

func (s *safeSource) Name() string   { return s.name }
func (s *safeSource) Format() Format { return SafetensorsFiles }
func (s *safeSource) Items() []Item  { return s.items }

func (s *safeSource) ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error {
	i, ok := s.byName[fqn]
	if !ok {
		return exit.Input.Errorf("checkpoint %s: %s: no such tensor", s.name, fqn)
	}
	it := s.items[i]
	want := Box{offsets, sizes}
	if err := within(offsets, sizes, it.Shape); err != nil {
		return exit.Input.Errorf("checkpoint %s: %s: %w", s.name, fqn, err)
	}
	for _, p := range s.parts[fqn] {
		common, ok := p.box.intersect(want)
		if !ok {
			continue
		}
		f := s.files[p.file]
		cp := regionCopy(int64(it.DType.Size()), common, p.box, contiguous(p.box.Sizes), want)
		base := f.data + p.at.Begin
		if err := cp.run(f.file, base, f.data+p.at.End, dst); err != nil {
			return fmt.Errorf("safetensors %s: %s: %w", f.path, fqn, err)
		}
	}
	return nil
}

func (s *safeSource) Object(string) (any, error)       { return nil, errNoObjects }
func (s *safeSource) ObjectZip(string) ([]byte, error) { return nil, errNoObjects }

func (s *safeSource) Close() error {
	var err error
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}
