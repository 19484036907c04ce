package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// Reader reads a DCP folder. Its methods may be called from several goroutines.
type Reader struct {
	folder   folder
	meta     *metadata
	items    []Item
	byName   map[string]int
	opened   sync.Map // *location -> *tensorItem
	expanded expanded
}

// Kind tells a tensor from a Python object.
type Kind string

// The kinds of items.
const (
	KindTensor Kind = "tensor"
	KindBytes  Kind = "bytes"
)

// Item is one entry of a checkpoint.
type Item struct {
	FQN    string
	Kind   Kind
	DType  dtype.DType // of a tensor
	Shape  []int64     // of a tensor
	Chunks []Box       // of a tensor: how it is cut
	Bytes  int64       // of a tensor's elements, or of an object's stored form
	Path   []any       // in the nested state dict: strings and int64 list positions; nil if unknown
}

// Box is a chunk's place in its tensor.
type Box struct {
	Offsets []int64 `json:"offsets"`
	Sizes   []int64 `json:"sizes"`
}

// Open reads a folder's metadata and checks it against the files: names, ranges, and that each tensor's chunks cover
// it once. No tensor is read. Its errors say what is wrong first.
func Open(dir string) (*Reader, error) {
	r, err := open(dir)
	if err != nil {
		return nil, err
	}
	if faults := r.faults(); len(faults) > 0 {
		r.Close()
		return nil, exit.Input.Errorf("checkpoint %s: %w", dir, faults[0])
	}
	return r, nil
}

// open is Open without the checks against the files.
func open(dir string) (*Reader, error) {
	md, err := readMetadata(dir)
	if err != nil {
		return nil, err
	}
	return newReader(dir, md), nil
}

func newReader(dir string, md *metadata) *Reader {
	r := &Reader{folder: folder{dir: dir}, meta: md, byName: map[string]int{}}
	for fqn, t := range md.tensors {
		it := Item{FQN: fqn, Kind: KindTensor, DType: t.dtype, Shape: t.shape, Chunks: t.chunks, Path: md.paths[fqn]}
		it.Bytes, _ = byteSize(t.shape, t.dtype.Size()) // checked by the parser
		r.items = append(r.items, it)
	}
	for fqn, at := range md.objects {
		r.items = append(r.items, Item{FQN: fqn, Kind: KindBytes, Bytes: at.length, Path: md.paths[fqn]})
	}
	slices.SortFunc(r.items, func(a, b Item) int { return strings.Compare(a.FQN, b.FQN) })
	for i, it := range r.items {
		r.byName[it.FQN] = i
	}
	return r
}

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
	merged := &metadata{tensors: map[string]*tensorMeta{}, objects: map[string]*location{}, paths: map[string][]any{}}
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
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Name(), ".safetensors"):
			return exit.Input.Errorf("checkpoint %s: a folder of safetensors files, not a DCP folder (no .metadata)", dir)
		case strings.HasSuffix(e.Name(), ".distcp"):
			return exit.Input.Errorf("checkpoint %s: incomplete: there are data files but no .metadata, which is written last", dir)
		}
	}
	return exit.Input.Errorf("checkpoint %s: no .metadata: not a DCP folder, or an incomplete one", dir)
}

// merge adds what another rank saved. A chunk that both saved is taken once.
func (m *metadata) merge(o *metadata) error {
	for fqn, t := range o.tensors {
		have := m.tensors[fqn]
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

// faults checks what the metadata promises: files that are there and long enough, tensors that are covered once.
func (r *Reader) faults() []error { return append(r.fileFaults(), r.tilingFaults()...) }

func (r *Reader) tilingFaults() []error {
	var faults []error
	for _, it := range r.items {
		if it.Kind != KindTensor {
			continue
		}
		if err := checkTiling(it.Shape, it.Chunks); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", it.FQN, err))
		}
	}
	return faults
}

// span is an item's range in a file.
type span struct {
	fqn string
	at  *location
}

// spans lists every item's range by file, in order of offset.
func (r *Reader) spans() map[string][]span {
	out := map[string][]span{}
	for _, it := range r.items {
		if at := r.meta.objects[it.FQN]; at != nil {
			out[at.path] = append(out[at.path], span{it.FQN, at})
			continue
		}
		for _, at := range r.meta.tensors[it.FQN].at {
			out[at.path] = append(out[at.path], span{it.FQN, at})
		}
	}
	for _, s := range out {
		slices.SortStableFunc(s, func(a, b span) int { return cmp.Compare(a.at.offset, b.at.offset) })
	}
	return out
}

func (r *Reader) fileFaults() []error {
	var faults []error
	spans := r.spans()
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		if err := r.fileFault(name, spans[name]); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

func (r *Reader) fileFault(name string, spans []span) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("%s: %w", spans[0].fqn, err)
	}
	size, err := r.folder.size(name)
	if err != nil {
		return fmt.Errorf("%w: it holds %s and %d more items", err, spans[0].fqn, len(spans)-1)
	}
	need, first := int64(0), -1
	for i, s := range spans {
		if s.at.offset < 0 || s.at.length < 0 || s.at.length > maxFile-s.at.offset {
			return fmt.Errorf("%s: range %d+%d of file %s is no range", s.fqn, s.at.offset, s.at.length, name)
		}
		end := s.at.offset + s.at.length
		if end > size && first < 0 {
			first = i
		}
		need = max(need, end)
	}
	if first >= 0 {
		return fmt.Errorf("file %s is cut: %d bytes where %d are needed; the first item affected is %s", name, size, need, spans[first].fqn)
	}
	return nil
}

const maxFile = 1 << 60 // bytes; keeps sums of offsets and lengths from overflow

// Items lists what the checkpoint holds, by name. The slice is the reader's own: do not change it.
func (r *Reader) Items() []Item { return r.items }

// Item finds an entry by name.
func (r *Reader) Item(fqn string) (Item, bool) {
	i, ok := r.byName[fqn]
	if !ok {
		return Item{}, false
	}
	return r.items[i], true
}

// Close closes the files.
func (r *Reader) Close() error { return r.folder.close() }

// wrap says where an error occurred. It is the checkpoint's fault, unless reading was interrupted or the disk failed.
func (r *Reader) wrap(fqn string, err error) error {
	if err == nil {
		return nil
	}
	if code := exit.Code(err); code == int(exit.Lost) || code == int(exit.Interrupted) {
		return fmt.Errorf("checkpoint %s: %s: %w", r.folder.dir, fqn, err)
	}
	return exit.Input.Errorf("checkpoint %s: %s: %w", r.folder.dir, fqn, err)
}
