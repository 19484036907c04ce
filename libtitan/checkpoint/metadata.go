package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// metadata is what a .metadata file says.
type metadata struct {
	tensors map[string]*tensorMeta
	objects map[string]*location // of each bytes item
	paths   map[string][]any     // planner_data
}

// tensorMeta is a tensor: chunk i is the box chunks[i] and lies at at[i].
type tensorMeta struct {
	dtype  dtype.DType
	shape  []int64
	chunks []Box
	at     []*location
}

// location is a range of a file, and how its bytes are coded.
type location struct {
	path           string
	offset, length int64
	transforms     []string // in reading order
}

// metadataOps are the opcodes that Python writes for a .metadata, by protocols 2 to 5.
var metadataOps = pickle.Ops(`PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1
	SHORT_BINUNICODE BINUNICODE BINUNICODE8 EMPTY_DICT EMPTY_LIST EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3
	APPEND APPENDS SETITEM SETITEMS BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD`)

// parseMetadata reads a .metadata; the result shares no memory with data.
func parseMetadata(data string) (*metadata, error) {
	program, err := pickle.Check(data, &metadataOps)
	if err != nil {
		return nil, err
	}
	return newMetaMachine(program).parse()
}

// parse runs the program and makes a metadata of what it leaves.
func (m *metaMachine) parse() (*metadata, error) {
	v, err := m.run()
	if err != nil {
		return nil, err
	}
	if v.kind != metaObject || metaClassID(v.size) != metadataClass {
		return nil, errors.New("the pickle holds no Metadata object")
	}
	m.program, m.data, m.memo, m.stack, m.intern = nil, "", nil, nil, nil
	p := metadataParser{metaMachine: m, md: newMetadata(), coded: map[string][]string{}}
	return p.md, p.parse(m.tops[v.n])
}

func newMetadata() *metadata {
	return &metadata{tensors: map[string]*tensorMeta{}, objects: map[string]*location{}, paths: map[string][]any{}}
}

// metadataParser turns the pickle's objects into a metadata.
type metadataParser struct {
	*metaMachine
	md    *metadata
	named []*tensorMeta       // by place in strs
	at    []location          // of each storage
	coded map[string][]string // lists of transforms: few differ
}

func (p *metadataParser) parse(top metaTop) error {
	if top.storage.kind != metaDict {
		return errors.New("storage_data: missing")
	}
	if top.items.kind != metaDict {
		return errors.New("no state_dict_metadata")
	}
	p.named = make([]*tensorMeta, len(p.strs))
	bytesItems, err := p.items(p.dicts[top.items.n].items)
	if err != nil {
		return err
	}
	if err := p.storage(p.dicts[top.storage.n].items); err != nil {
		return err
	}
	for _, fqn := range bytesItems {
		if p.md.objects[fqn] == nil {
			return fmt.Errorf("%.200q: no storage entry", fqn)
		}
	}
	if top.planner.kind == metaDict {
		p.planner(p.dicts[top.planner.n].items)
	}
	return nil
}

// items files the tensors and lists the names of the bytes items.
func (p *metadataParser) items(pairs []metaValue) (bytesItems []string, err error) {
	for i := 0; i < len(pairs); i += 2 {
		key, v := pairs[i], pairs[i+1]
		if key.kind != metaStr {
			return nil, errors.New("state_dict_metadata: a name is no string")
		}
		fqn := p.strs[key.n]
		_, twice := p.md.objects[fqn]
		switch {
		case twice || p.named[key.n] != nil:
			err = errors.New("the name stands twice")
		case v.kind == metaObject && metaClassID(v.size) == tensorClass:
			p.named[key.n], err = p.tensor(&p.tensors[v.n])
			p.md.tensors[fqn] = p.named[key.n]
		case v.kind == metaObject && metaClassID(v.size) == bytesClass:
			p.md.objects[fqn] = nil // until storage_data is read
			bytesItems = append(bytesItems, fqn)
		default:
			err = errors.New("neither a tensor nor a bytes item")
		}
		if err != nil {
			return nil, fmt.Errorf("%.200q: %w", fqn, err)
		}
	}
	return bytesItems, nil
}

func (p *metadataParser) tensor(t *metaTensor) (*tensorMeta, error) {
	meta := &tensorMeta{dtype: t.dtype, shape: p.slice(t.size.run())}
	if t.dtype.Size() == 0 {
		return nil, errors.New("no dtype")
	}
	if _, err := byteSize(meta.shape, t.dtype.Size()); err != nil {
		return nil, err
	}
	if t.chunks.kind != metaList {
		return meta, nil
	}
	list := p.lists[t.chunks.n]
	meta.chunks, meta.at = make([]Box, len(list)), make([]*location, len(list))
	for i, v := range list {
		if v.kind != metaObject || metaClassID(v.size) != chunkClass {
			return nil, errors.New("a chunk is no ChunkStorageMetadata")
		}
		c := p.chunks[v.n]
		meta.chunks[i] = Box{p.slice(c.offsets), p.slice(c.sizes)}
	}
	return meta, nil
}

func (p *metadataParser) slice(r metaRun) []int64 { return p.ints[r.at : r.at+r.n : r.at+r.n] }

// storage gives each chunk and each bytes item its location. The index of an entry mostly says which chunk it is;
// where it does not, the chunk is found by its offsets.
func (p *metadataParser) storage(pairs []metaValue) error {
	p.at = make([]location, len(p.storages))
	for i := range p.at {
		var err error
		if p.at[i], err = p.location(&p.storages[i]); err != nil {
			return err
		}
	}
	for i := 0; i < len(pairs); i += 2 {
		key, v := pairs[i], pairs[i+1]
		if key.kind != metaObject || metaClassID(key.size) != indexClass || v.kind != metaObject || metaClassID(v.size) != storageClassID {
			return errors.New("storage_data: an entry is no MetadataIndex with a _StorageInfo")
		}
		x, at := &p.indices[key.n], &p.at[v.n]
		if x.fqn < 0 {
			return errors.New("storage_data: a MetadataIndex without a name")
		}
		if _, ok := p.md.objects[p.strs[x.fqn]]; ok && !x.tensor {
			p.md.objects[p.strs[x.fqn]] = at
			continue
		}
		t := p.named[x.fqn]
		if t != nil && x.tensor && x.hint >= 0 && int(x.hint) < len(t.chunks) && slices.Equal(t.chunks[x.hint].Offsets, p.slice(x.offset)) {
			t.at[x.hint] = at
		}
	}
	return p.unhinted(pairs)
}

// unhinted finds by their offsets the chunks that have no location yet.
func (p *metadataParser) unhinted(pairs []metaValue) error {
	missing := map[*tensorMeta]map[string]*location{}
	for _, t := range p.named {
		if t != nil && slices.Contains(t.at, nil) {
			missing[t] = map[string]*location{}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	for i := 0; i < len(pairs); i += 2 {
		x := &p.indices[pairs[i].n]
		if byOffset := missing[p.named[x.fqn]]; byOffset != nil && x.tensor {
			byOffset[offsetKey(p.slice(x.offset))] = &p.at[pairs[i+1].n]
		}
	}
	for id, t := range p.named {
		byOffset := missing[t]
		if byOffset == nil {
			continue
		}
		for i, c := range t.chunks {
			if t.at[i] == nil {
				t.at[i] = byOffset[offsetKey(c.Offsets)]
			}
			if t.at[i] == nil {
				return fmt.Errorf("%.200q: no storage entry for the chunk at %v", p.strs[id], c.Offsets)
			}
		}
	}
	return nil
}

// offsetKey is offsets as a map key.
func offsetKey(offsets []int64) string {
	b := make([]byte, 0, 64)
	for _, n := range offsets {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

// location copies a _StorageInfo.
func (p *metadataParser) location(s *metaStorage) (location, error) {
	at := location{offset: s.offset, length: s.length}
	if s.path < 0 {
		return at, errors.New("storage_data: a _StorageInfo without its file")
	}
	at.path = p.strs[s.path]
	if s.transforms < 0 {
		return at, nil
	}
	var names []string
	for _, v := range p.lists[s.transforms] {
		if v.kind != metaStr {
			return at, errors.New("_StorageInfo: a transform's name is no string")
		}
		names = append(names, p.strs[v.n])
	}
	key := strings.Join(names, "\x00")
	if p.coded[key] == nil {
		p.coded[key] = names
	}
	at.transforms = p.coded[key]
	return at, nil
}

// planner keeps the paths that are well formed; they only shape the nested form.
func (p *metadataParser) planner(pairs []metaValue) {
	for i := 0; i < len(pairs); i += 2 {
		if pairs[i].kind != metaStr || pairs[i+1].kind != metaTuple {
			continue
		}
		path := make([]any, 0, pairs[i+1].size)
		for _, part := range p.elements(pairs[i+1]) {
			switch part.kind {
			case metaStr:
				path = append(path, p.strs[part.n])
			case metaInt:
				path = append(path, part.n)
			}
		}
		p.md.paths[p.strs[pairs[i].n]] = path
	}
}
