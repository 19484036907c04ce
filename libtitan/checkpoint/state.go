package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// State is what a checkpoint folder is to hold.
type State struct {
	Tensors []Tensor
	Objects []Object
}

// Tensor is a tensor to write, in chunks that tile its shape.
type Tensor struct {
	FQN    string
	Path   []any // in the nested state dict: strings for keys, ints for list positions; nil means {FQN}
	DType  dtype.DType
	Shape  []int64
	Chunks []Chunk
}

// Chunk is a box of a tensor that goes to one file. Fill is called from several goroutines.
type Chunk struct {
	Offsets, Sizes []int64
	File           int // R of the file __R_0.distcp
	Fill           Fill
}

// Fill writes bytes [off, off+len(dst)) of a chunk's contiguous little-endian data into dst. Both are multiples of
// the element size.
type Fill func(dst []byte, off int64) error

// Object is a plain Python value to write: what [pickle.Encoder.Value] takes. Where Zip is set, that torch.save zip goes
// into a DCP folder as it is, and Value is not looked at.
type Object struct {
	FQN   string
	Path  []any
	Value any
	Zip   []byte
	File  int
}

// Whole is the one chunk of a tensor that is not cut, in file 0.
func Whole(shape []int64, fill Fill) []Chunk {
	return []Chunk{{Offsets: make([]int64, len(shape)), Sizes: slices.Clone(shape), Fill: fill}}
}

// NumItems is how many objects and chunks go to a file.
func (s *State) NumItems(file int) int {
	n := 0
	for _, o := range s.Objects {
		if o.File == file {
			n++
		}
	}
	for i := range s.Tensors {
		for _, c := range s.Tensors[i].Chunks {
			if c.File == file {
				n++
			}
		}
	}
	return n
}

// check refuses a state that no reader could load: a name twice, chunks that do not tile.
func (s *State) check() error {
	names := map[string]bool{}
	unique := func(fqn string) error {
		if fqn == "" || names[fqn] {
			return exit.Input.Errorf("checkpoint: %q: the name is empty or stands twice", fqn)
		}
		names[fqn] = true
		return nil
	}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		if err := unique(t.FQN); err != nil {
			return err
		}
		if err := t.check(); err != nil {
			return exit.Input.Errorf("checkpoint: %s: %w", t.FQN, err)
		}
	}
	for _, o := range s.Objects {
		if err := unique(o.FQN); err != nil {
			return err
		}
		if o.File < 0 {
			return exit.Input.Errorf("checkpoint: %s: file %d is negative", o.FQN, o.File)
		}
	}
	return nil
}

func (t *Tensor) check() error {
	if t.DType.Size() == 0 {
		return errors.New("no dtype")
	}
	if _, err := byteSize(t.Shape, t.DType.Size()); err != nil {
		return err
	}
	if len(t.Chunks) == 0 {
		return errors.New("no chunks: an empty tensor too has one, of its empty shape")
	}
	boxes := make([]Box, len(t.Chunks))
	for i, c := range t.Chunks {
		boxes[i] = Box{c.Offsets, c.Sizes}
		if c.File < 0 {
			return fmt.Errorf("file %d is negative", c.File)
		}
	}
	if err := uniqueOffsets(t.Chunks); err != nil {
		return err
	}
	return checkTiling(t.Shape, boxes)
}

// uniqueOffsets refuses two chunks, empty ones included, at one place: readers look chunks up by their offsets.
func uniqueOffsets(chunks []Chunk) error {
	byOffset := slices.Clone(chunks)
	slices.SortFunc(byOffset, func(a, b Chunk) int { return slices.CompareFunc(a.Offsets, b.Offsets, cmp.Compare[int64]) })
	for i := 1; i < len(byOffset); i++ {
		if slices.Equal(byOffset[i-1].Offsets, byOffset[i].Offsets) {
			return fmt.Errorf("two chunks at %v", byOffset[i].Offsets)
		}
	}
	return nil
}

// nestedPath is the nested place of a name.
func nestedPath(fqn string, p []any) []any {
	if p == nil {
		return []any{fqn}
	}
	return p
}
