package checkpoint

import (
	"io/fs"

	"titan/libtitan/exit"
)

// stateSource reads the tensors of a state that is not written yet.
type stateSource struct {
	items  []Item
	byName map[string]*Tensor
}

func newStateSource(s *State) *stateSource {
	src := &stateSource{byName: map[string]*Tensor{}}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		bytes, _ := byteSize(t.Shape, t.DType.Size()) // checked
		src.byName[t.FQN] = t
		src.items = append(src.items, Item{FQN: t.FQN, Kind: KindTensor, DType: t.DType, Shape: t.Shape, Bytes: bytes, Path: t.Path})
	}
	return src
}

func (s *stateSource) Name() string                     { return "" }
func (s *stateSource) Format() Format                   { return DCP }
func (s *stateSource) Items() []Item                    { return s.items }
func (s *stateSource) Close() error                     { return nil }
func (s *stateSource) Object(string) (any, error)       { return nil, fs.ErrNotExist }
func (s *stateSource) ObjectZip(string) ([]byte, error) { return nil, fs.ErrNotExist }

// ReadRegion assembles the box from the chunks that it meets.
func (s *stateSource) ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error {
	t, want := s.byName[fqn], Box{offsets, sizes}
	if t == nil {
		return exit.Bug.Errorf("checkpoint: %s: no such tensor", fqn)
	}
	elem := t.DType.Size()
	for _, c := range t.Chunks {
		chunk := Box{c.Offsets, c.Sizes}
		common, ok := chunk.intersect(want)
		if !ok {
			continue
		}
		bytes, err := byteSize(c.Sizes, elem)
		if err != nil {
			return err
		}
		cp := regionCopy(int64(elem), common, chunk, contiguous(c.Sizes), want)
		if err := cp.run(fillReader(c.Fill), 0, bytes, dst); err != nil {
			return err
		}
	}
	return nil
}

// fillReader is a chunk's bytes by range.
type fillReader Fill

func (f fillReader) ReadAt(p []byte, off int64) (int, error) {
	if err := f(p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}
