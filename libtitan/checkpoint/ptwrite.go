package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"strconv"

	"titan/libtitan/exit"
	"titan/libtitan/pickle"
)

// WriteTorch makes path a file that torch.load reads: s's items nested by their paths, one storage a tensor. The file
// appears whole or not at all. Each tensor has one chunk, its whole (see [Whole]).
func WriteTorch(ctx context.Context, path string, s State, o WriteOptions) error {
	plan, err := newTorchPlan(&s)
	if err != nil {
		return exit.Input.Errorf("checkpoint %s: %w", path, err)
	}
	st, err := newFileStage(path, o.Replace)
	if err != nil {
		return err
	}
	plan.file().f = st.file
	if err := plan.writeTorch(ctx, o); err != nil {
		st.discard()
		return err
	}
	return st.commit(ctx)
}

// newTorchPlan lays the zip out: its first records as one item, then an item for each storage's record.
func newTorchPlan(s *State) (*writePlan, error) {
	pkl, err := statePickle(s)
	if err != nil {
		return nil, err
	}
	p := &writePlan{state: s, byRank: map[int]*outFile{}}
	first := newZipItem(pkl, -1)
	p.place(&writeItem{fqn: "data.pkl", zip: zipItem{head: first.head, records: first.records, made: true}}, 0)
	for i := range s.Tensors {
		t := &s.Tensors[i]
		n, err := byteSize(t.Shape, t.DType.Size())
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.FQN, err)
		}
		r := zipRecord{name: "data/" + strconv.Itoa(i), offset: p.file().size, size: n}
		p.place(&writeItem{fqn: t.FQN, chunk: &t.Chunks[0], zip: newRecordItem(r)}, 0)
	}
	return p, nil
}

func (p *writePlan) file() *outFile { return p.byRank[0] }

// writeTorch writes the storages, several blocks at a time, and then what needs their CRCs.
func (p *writePlan) writeTorch(ctx context.Context, o WriteOptions) error {
	if err := p.writeItems(ctx, o); err != nil {
		return err
	}
	f := p.file()
	records := f.items[0].zip.records
	for _, it := range f.items[1:] {
		r := it.zip.records[0]
		r.crc = it.crc
		records = append(records, r)
	}
	if _, err := f.f.WriteAt(appendEnd(nil, f.size, records), f.size); err != nil {
		return err
	}
	return f.f.Sync()
}

// statePickle is the data.pkl of a nested state whose tensor i lies in storage i.
func statePickle(s *State) ([]byte, error) {
	root := &nest{}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		if len(t.Chunks) != 1 {
			return nil, fmt.Errorf("%s: %d chunks where a file by torch.save holds a tensor whole", t.FQN, len(t.Chunks))
		}
		if err := within(t.Chunks[0].Offsets, t.Chunks[0].Sizes, t.Shape); err != nil {
			return nil, fmt.Errorf("%s: %w", t.FQN, err)
		}
		key := strconv.Itoa(i)
		leaf := func(e *pickle.Encoder) error { return encodeTensor(e, t.DType, t.Shape, key) }
		if err := root.put(t.FQN, t.Path, leaf); err != nil {
			return nil, err
		}
	}
	for _, o := range s.Objects {
		leaf := func(e *pickle.Encoder) error { return e.Value(spelled(o.Value)) }
		if err := root.put(o.FQN, o.Path, leaf); err != nil {
			return nil, err
		}
	}
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
	if err := root.encode(e); err != nil {
		return nil, err
	}
	err := e.Stop()
	return b.Bytes(), err
}

// nest is a value within a nested state: a leaf, a dict or a list. Positions of a list that no path names are None.
type nest struct {
	leaf  func(e *pickle.Encoder) error
	keys  []string
	dict  map[string]*nest
	items []*nest
	list  bool
}

const maxListed = 1 << 20 // positions of a list: a path must not ask for memory without end

// put hangs a leaf at its path.
func (n *nest) put(fqn string, path []any, leaf func(e *pickle.Encoder) error) error {
	for _, part := range nestedPath(fqn, path) {
		if n = n.child(part); n == nil {
			return fmt.Errorf("%s: its path %v goes through another item, or mixes keys and positions", fqn, path)
		}
	}
	if n.leaf != nil || n.dict != nil || n.list {
		return fmt.Errorf("%s: another item has its path %v", fqn, path)
	}
	n.leaf = leaf
	return nil
}

// child is the value at a key or a position, made if need be; nil where there can be none.
func (n *nest) child(part any) *nest {
	if i, ok := part.(int); ok {
		part = int64(i)
	}
	switch part := part.(type) {
	case string:
		if n.leaf != nil || n.list {
			return nil
		}
		if n.dict == nil {
			n.dict = map[string]*nest{}
		}
		if n.dict[part] == nil {
			n.keys, n.dict[part] = append(n.keys, part), &nest{}
		}
		return n.dict[part]
	case int64:
		if n.leaf != nil || n.dict != nil || part < 0 || part >= maxListed {
			return nil
		}
		n.list = true
		for int64(len(n.items)) <= part {
			n.items = append(n.items, &nest{})
		}
		return n.items[part]
	}
	return nil
}

func (n *nest) encode(e *pickle.Encoder) error {
	switch {
	case n.leaf != nil:
		return n.leaf(e)
	case n.list:
		e.Op(']')
		e.Put()
		e.Op('(')
		for _, item := range n.items {
			if item.leaf == nil && item.dict == nil && !item.list {
				e.Op('N')
				continue
			}
			if err := item.encode(e); err != nil {
				return err
			}
		}
		e.Op('e')
		return nil
	}
	e.Op('}')
	e.Put()
	e.Op('(')
	for _, key := range n.keys {
		e.Str(key)
		if err := n.dict[key].encode(e); err != nil {
			return err
		}
	}
	e.Op('u')
	return nil
}
