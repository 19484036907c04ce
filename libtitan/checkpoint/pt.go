package checkpoint

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/pickle"
)

// torchSource is a file by torch.save: a zip, or the form of before PyTorch 1.6. Its value is flattened by DCP's rule:
// mappings are descended, and lists that hold a tensor or a mapping; anything else is an object.
type torchSource struct {
	name   string
	r      io.ReaderAt
	size   int64
	close  func() error
	zip    *zipFile // nil: the form of before PyTorch 1.6
	items  []Item
	byName map[string]int
	values map[string]any // of each item: a *tensorItem, or a plain value
}

// isTorch reports whether a file's first bytes are torch.save's.
func isTorch(head []byte) bool {
	return bytes.HasPrefix(head, []byte("PK\x03\x04")) || bytes.HasPrefix(head, legacyMagic)
}

// openTorch opens a file by torch.save.
func openTorch(path string) (Source, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, err
	}
	s := &torchSource{name: path, r: f, size: info.Size(), close: f.Close}
	if err := s.open(); err != nil {
		f.Close()
		return nil, exit.Input.Errorf("checkpoint %s: %w", path, err)
	}
	return s, nil
}

func (s *torchSource) open() error {
	v, err := s.value()
	if err != nil {
		return err
	}
	s.values = map[string]any{}
	f := flattener{add: s.add, plainer: plainer{left: 1<<20 + s.size}}
	if err := f.root(v); err != nil {
		return err
	}
	slices.SortFunc(s.items, func(a, b Item) int { return strings.Compare(a.FQN, b.FQN) })
	s.byName = make(map[string]int, len(s.items))
	for i, it := range s.items {
		s.byName[it.FQN] = i
	}
	return nil
}

// value reads everything but the tensors' data.
func (s *torchSource) value() (any, error) {
	head := make([]byte, min(s.size, int64(len(legacyMagic))))
	if err := readFull(s.r, head, 0); err != nil {
		return nil, err
	}
	if bytes.Equal(head, legacyMagic) {
		return readLegacy(s.r, s.size)
	}
	z, err := openZip(s.r, s.size)
	if err != nil {
		return nil, err
	}
	for name := range z.records {
		if name == "constants.pkl" || strings.HasPrefix(name, "code/") {
			return nil, errors.New("a TorchScript archive: it holds code; save its state_dict instead")
		}
	}
	s.zip = z
	return readItem(z)
}

func (s *torchSource) add(path []any, v any) error {
	it := Item{FQN: joinPath(path), Kind: KindBytes, Path: path}
	if _, twice := s.values[it.FQN]; twice {
		return fmt.Errorf("two values have the name %.200q", it.FQN)
	}
	s.values[it.FQN] = v
	if t, ok := v.(*tensorItem); ok {
		it.Kind, it.DType, it.Shape = KindTensor, t.dtype, t.shape
		it.Chunks = []Box{whole(t.shape)}
		var err error
		if it.Bytes, err = byteSize(t.shape, t.dtype.Size()); err != nil {
			return err
		}
	} else if pkl, err := objectPickle(v); err == nil {
		it.Bytes = int64(len(pkl))
	}
	s.items = append(s.items, it)
	return nil
}

// joinPath is the name of a place in the nested value; the value itself has the name "".
func joinPath(path []any) string {
	parts := make([]string, len(path))
	for i, p := range path {
		parts[i] = fmt.Sprint(p)
	}
	return strings.Join(parts, ".")
}

// onOneLine is a name from a stranger's file as an error shows it.
func onOneLine(name string) string {
	if q := strconv.Quote(name); q != `"`+name+`"` {
		return q
	}
	return name
}

// flattener walks a nested value and hands its leaves to add.
type flattener struct {
	plainer
	add func(path []any, v any) error
}

func (f *flattener) root(v any) error { return f.walk([]any{}, v) }

func (f *flattener) walk(path []any, v any) error {
	if f.left--; f.left < 0 || len(path) > maxDepth {
		return errTooDeep
	}
	switch v := v.(type) {
	case *tensorItem:
		return f.add(path, v)
	case *pickle.Dict:
		return f.mapping(path, v)
	case *pickle.List:
		inner, err := f.descended(v, 0)
		if err != nil {
			return err
		}
		if !inner {
			break
		}
		for i, x := range v.Items {
			if err := f.walk(slices.Concat(path, []any{int64(i)}), x); err != nil {
				return err
			}
		}
		return nil
	}
	p, err := f.plain(v, len(path))
	if err != nil {
		return fmt.Errorf("%s: %w", onOneLine(joinPath(path)), err)
	}
	return f.add(path, p)
}

func (f *flattener) mapping(path []any, d *pickle.Dict) error {
	identity := func(key any) string { return fmt.Sprintf("%T %s", key, keyName(key)) }
	last := make(map[string]int, len(d.Pairs))
	for i, p := range d.Pairs {
		last[identity(p.Key)] = i // a key that is set again has its last value
	}
	for i, p := range d.Pairs {
		if last[identity(p.Key)] != i {
			continue
		}
		if err := f.walk(slices.Concat(path, []any{keyName(p.Key)}), p.Value); err != nil {
			return err
		}
	}
	return nil
}

// keyName is Python's str of a key.
func keyName(key any) string {
	switch k := key.(type) {
	case string:
		return k
	case int64:
		return strconv.FormatInt(k, 10)
	case nil, bool, float64:
		return Repr(k)
	}
	return fmt.Sprintf("<%T>", key)
}

// descended reports whether a list holds a tensor or a mapping at any depth, through lists.
func (f *flattener) descended(l *pickle.List, depth int) (bool, error) {
	for _, x := range l.Items {
		if f.left--; f.left < 0 || depth > maxDepth {
			return false, errTooDeep
		}
		switch x := x.(type) {
		case *tensorItem, *pickle.Dict:
			return true, nil
		case *pickle.List:
			if inner, err := f.descended(x, depth+1); inner || err != nil {
				return inner, err
			}
		}
	}
	return false, nil
}

func (s *torchSource) Name() string   { return s.name }
func (s *torchSource) Format() Format { return Torch }
func (s *torchSource) Items() []Item  { return s.items }
func (s *torchSource) Close() error   { return s.close() }

func (s *torchSource) wrap(fqn string, err error) error {
	if err == nil {
		return nil
	}
	return exit.Input.Errorf("checkpoint %s: %s: %w", s.name, onOneLine(fqn), err)
}

func (s *torchSource) ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error {
	t, ok := s.values[fqn].(*tensorItem)
	if !ok {
		return s.wrap(fqn, errors.New("no such tensor in the checkpoint"))
	}
	want := Box{offsets, sizes}
	if err := within(offsets, sizes, t.shape); err != nil {
		return s.wrap(fqn, err)
	}
	n, err := byteSize(sizes, t.dtype.Size())
	if err == nil && n != int64(len(dst)) {
		err = fmt.Errorf("%d bytes for a region of %d", len(dst), n)
	}
	if err != nil || n == 0 {
		return s.wrap(fqn, err)
	}
	cp := regionCopy(int64(t.dtype.Size()), want, whole(t.shape), t.strides, want)
	cp.src += t.offset * cp.elem
	return s.wrap(fqn, cp.run(s.r, t.storage.at, t.storage.at+t.storage.bytes, dst))
}

func (s *torchSource) Object(fqn string) (any, error) {
	v, ok := s.values[fqn]
	if _, tensor := v.(*tensorItem); !ok || tensor {
		return nil, s.wrap(fqn, errors.New("no such object in the checkpoint"))
	}
	return v, nil
}

// ObjectZip spells the object anew: in a file by torch.save it is no zip of its own.
func (s *torchSource) ObjectZip(fqn string) ([]byte, error) {
	v, err := s.Object(fqn)
	if err != nil {
		return nil, err
	}
	pkl, err := objectPickle(v)
	if err != nil {
		return nil, s.wrap(fqn, err)
	}
	z := newZipItem(pkl, -1)
	return append(z.head, z.tail(0)...), nil
}
