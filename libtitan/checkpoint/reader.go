package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
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
	streams  streams
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
	Files  []int       // which of the checkpoint's files holds each chunk, or the object; nil: the first holds all
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
	r.numberFiles()
	slices.SortFunc(r.items, func(a, b Item) int { return strings.Compare(a.FQN, b.FQN) })
	for i, it := range r.items {
		r.byName[it.FQN] = i
	}
	return r
}

// numberFiles gives the data files numbers, in the order of their names, and each item those of its chunks.
func (r *Reader) numberFiles() {
	names := map[string]int{}
	for _, at := range r.meta.objects {
		names[at.path] = 0
	}
	for _, t := range r.meta.tensors {
		for _, at := range t.at {
			names[at.path] = 0
		}
	}
	byLength := func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), strings.Compare(a, b)) } // __9 before __10
	for i, name := range slices.SortedFunc(maps.Keys(names), byLength) {
		names[name] = i
	}
	for i := range r.items {
		it := &r.items[i]
		if it.Kind == KindBytes {
			it.Files = []int{names[r.meta.objects[it.FQN].path]}
			continue
		}
		at := r.meta.tensors[it.FQN].at
		it.Files = make([]int, len(at))
		for j, l := range at {
			it.Files[j] = names[l.path]
		}
	}
}

// Name is the folder that was opened.
func (r *Reader) Name() string { return r.folder.dir }

// Format is DCP.
func (r *Reader) Format() Format { return DCP }

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
