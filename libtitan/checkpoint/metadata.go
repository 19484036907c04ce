package checkpoint

import (
	"errors"
	"fmt"
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
	v, err := pickle.Decode(data, pickle.Options{Opcodes: metadataOps, Globals: metadataGlobals})
	if err != nil {
		return nil, err
	}
	top, ok := v.(*record)
	if !ok || top.class != "Metadata" {
		return nil, errors.New("the pickle holds no Metadata object")
	}
	p := metadataParser{intern: map[string]string{}}
	return p.parse(top)
}

// metadataParser turns the pickle's objects into a metadata.
type metadataParser struct {
	intern map[string]string // clones of the few strings that stay
	at     map[string]map[string]*location
}

func (p *metadataParser) keep(s string) string {
	k, ok := p.intern[s]
	if !ok {
		k = strings.Clone(s)
		p.intern[k] = k
	}
	return k
}

func (p *metadataParser) parse(top *record) (*metadata, error) {
	md := &metadata{tensors: map[string]*tensorMeta{}, objects: map[string]*location{}, paths: map[string][]any{}}
	if err := p.storage(top.dict("storage_data")); err != nil {
		return nil, fmt.Errorf("storage_data: %w", err)
	}
	items := top.dict("state_dict_metadata")
	if items == nil {
		return nil, errors.New("no state_dict_metadata")
	}
	for _, pair := range items.Pairs {
		fqn, ok := pair.Key.(string)
		if !ok {
			return nil, errors.New("state_dict_metadata: a name is no string")
		}
		if err := p.item(md, p.keep(fqn), pair.Value); err != nil {
			return nil, fmt.Errorf("%.200q: %w", fqn, err)
		}
	}
	p.planner(md, top.dict("planner_data"))
	return md, nil
}

func (p *metadataParser) item(md *metadata, fqn string, v any) error {
	if md.tensors[fqn] != nil || md.objects[fqn] != nil {
		return errors.New("the name stands twice")
	}
	if t, ok := v.(*tensorState); ok {
		meta, err := p.tensor(fqn, t)
		md.tensors[fqn] = meta
		return err
	}
	if r, ok := v.(*record); !ok || r.class != "BytesStorageMetadata" {
		return errors.New("neither a tensor nor a bytes item")
	}
	at := p.at[fqn][noOffset]
	if at == nil {
		return errors.New("no storage entry")
	}
	md.objects[fqn] = at
	return nil
}

func (p *metadataParser) tensor(fqn string, t *tensorState) (*tensorMeta, error) {
	if t.dtype.Size() == 0 {
		return nil, errors.New("no dtype")
	}
	if _, err := byteSize(t.size, t.dtype.Size()); err != nil {
		return nil, err
	}
	meta := &tensorMeta{dtype: t.dtype, shape: t.size, chunks: t.chunks, at: make([]*location, len(t.chunks))}
	for i, c := range t.chunks {
		if meta.at[i] = p.at[fqn][offsetKey(c.Offsets)]; meta.at[i] == nil {
			return nil, fmt.Errorf("no storage entry for the chunk at %v", c.Offsets)
		}
	}
	return meta, nil
}

// storage files the locations by name and offset.
func (p *metadataParser) storage(d *pickle.Dict) error {
	if d == nil {
		return errors.New("missing")
	}
	p.at = map[string]map[string]*location{}
	for _, pair := range d.Pairs {
		index, ok1 := pair.Key.(*indexState)
		info, ok2 := pair.Value.(*storageState)
		if !ok1 || !ok2 {
			return errors.New("an entry is no MetadataIndex with a _StorageInfo")
		}
		byOffset := p.at[index.fqn]
		if byOffset == nil {
			byOffset = map[string]*location{}
			p.at[index.fqn] = byOffset
		}
		info.path = p.keep(info.path)
		byOffset[index.key] = &info.location
	}
	return nil
}

// planner keeps the paths that are well formed; they only shape the nested form.
func (p *metadataParser) planner(md *metadata, d *pickle.Dict) {
	if d == nil {
		return
	}
	for _, pair := range d.Pairs {
		fqn, ok := pair.Key.(string)
		parts, ok2 := pair.Value.(pickle.Tuple)
		if !ok || !ok2 {
			continue
		}
		path := make([]any, 0, len(parts))
		for _, part := range parts {
			switch part := part.(type) {
			case string:
				path = append(path, p.keep(part))
			case int64:
				path = append(path, part)
			}
		}
		md.paths[p.keep(fqn)] = path
	}
}
