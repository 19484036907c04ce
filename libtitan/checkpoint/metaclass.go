package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// The classes of a .metadata, as the unpickler builds them. Fields that this package has no use for are dropped,
// known or not: newer versions add some.

// record is an instance whose fields stay as they are.
type record struct {
	class string
	state *pickle.Dict
}

func (r *record) Build(state any) error {
	if d, ok := state.(*pickle.Dict); ok {
		r.state = d
	}
	return nil
}

func (r *record) dict(field string) *pickle.Dict {
	if r.state == nil {
		return nil
	}
	v, _ := r.state.Get(field)
	d, _ := v.(*pickle.Dict)
	return d
}

// torchSize is a torch.Size.
type torchSize []int64

// propertiesState is a TensorProperties, of which the dtype counts.
type propertiesState struct{ dtype dtype.DType }

func (p *propertiesState) Build(state any) error {
	t, ok := state.(pickle.Tuple)
	if !ok || len(t) == 0 {
		return errors.New("TensorProperties without its tuple")
	}
	dt, ok := t[0].(dtype.DType)
	if !ok {
		return errors.New("TensorProperties without a dtype")
	}
	p.dtype = dt
	return nil
}

// tensorState is a TensorStorageMetadata.
type tensorState struct {
	dtype  dtype.DType
	size   []int64
	chunks []Box
}

func (t *tensorState) Build(state any) error {
	return fields(state, "TensorStorageMetadata", func(name string, v any) (ok bool) {
		switch name {
		case "properties":
			var p *propertiesState
			if p, ok = v.(*propertiesState); ok {
				t.dtype = p.dtype
			}
		case "size":
			t.size, ok = v.(torchSize)
		case "chunks":
			var list *pickle.List
			if list, ok = v.(*pickle.List); ok {
				t.chunks, ok = boxes(list)
			}
		default:
			return true
		}
		return ok
	})
}

func boxes(list *pickle.List) ([]Box, bool) {
	out := make([]Box, len(list.Items))
	for i, v := range list.Items {
		c, ok := v.(*chunkState)
		if !ok {
			return nil, false
		}
		out[i] = c.Box
	}
	return out, true
}

// chunkState is a ChunkStorageMetadata.
type chunkState struct{ Box }

func (c *chunkState) Build(state any) error {
	return fields(state, "ChunkStorageMetadata", func(name string, v any) (ok bool) {
		switch name {
		case "offsets":
			c.Offsets, ok = v.(torchSize)
		case "sizes":
			c.Sizes, ok = v.(torchSize)
		default:
			return true
		}
		return ok
	})
}

// indexState is a MetadataIndex: a name, and for a tensor's chunk its offsets.
type indexState struct {
	fqn string
	key string // offsetKey of the offsets
}

func (x *indexState) Build(state any) error {
	x.key = noOffset
	return fields(state, "MetadataIndex", func(name string, v any) (ok bool) {
		switch name {
		case "fqn":
			x.fqn, ok = v.(string)
		case "offset":
			var size torchSize
			if size, ok = v.(torchSize); ok {
				x.key = offsetKey(size)
			}
			ok = ok || v == nil
		default:
			return true
		}
		return ok
	})
}

const noOffset = "bytes"

// offsetKey is offsets as a map key: 8 bytes each, so never noOffset's 5.
func offsetKey(offsets []int64) string {
	b := make([]byte, 0, 64)
	for _, n := range offsets {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

// storageState is a _StorageInfo.
type storageState struct{ location }

func (s *storageState) Build(state any) error {
	return fields(state, "_StorageInfo", func(name string, v any) (ok bool) {
		switch name {
		case "relative_path":
			s.path, ok = v.(string)
		case "offset":
			s.offset, ok = v.(int64)
		case "length":
			s.length, ok = v.(int64)
		case "transform_descriptors":
			s.transforms, ok = descriptors(v)
		default:
			return true
		}
		return ok
	})
}

func descriptors(v any) ([]string, bool) {
	if v == nil {
		return nil, true
	}
	list, ok := v.(*pickle.List)
	if !ok {
		return nil, false
	}
	var out []string
	for _, item := range list.Items {
		s, ok := item.(string)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// fields calls set for each field of a dataclass's state; set reports whether the value has the field's type.
func fields(state any, class string, set func(name string, v any) bool) error {
	d, ok := state.(*pickle.Dict)
	if !ok {
		return fmt.Errorf("%s without a dict of fields", class)
	}
	for _, p := range d.Pairs {
		name, ok := p.Key.(string)
		if !ok || !set(name, p.Value) {
			return fmt.Errorf("%s: field %.100q has another type than expected", class, name)
		}
	}
	return nil
}

// metadataGlobals knows the names that PyTorch 1.13 to 2.14 put in a .metadata.
func metadataGlobals(module, name string) (any, bool) {
	switch module {
	case metadataModule, "torch.distributed._shard.checkpoint.metadata",
		filesystemModule, "torch.distributed._shard.checkpoint.filesystem",
		"torch.distributed._shard.sharded_tensor.metadata":
		v, ok := metadataClasses[name]
		return v, ok
	case "torch":
		if name == "Size" {
			return pickle.Func(newSize), true
		}
		dt, err := dtype.Parse(name)
		return dt, err == nil && dt.String() == name
	case "torch.serialization":
		return pickle.Func(ignored), name == "_get_layout"
	case "pathlib", "pathlib._local":
		switch name {
		case "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath":
			return pickle.Func(ignored), true
		}
	}
	return nil, false
}

var metadataClasses = map[string]any{
	"Metadata":              pickle.New(func() any { return &record{class: "Metadata"} }),
	"StorageMeta":           pickle.New(func() any { return &record{class: "StorageMeta"} }),
	"BytesStorageMetadata":  pickle.New(func() any { return &record{class: "BytesStorageMetadata"} }),
	"TensorStorageMetadata": pickle.New(func() any { return &tensorState{} }),
	"ChunkStorageMetadata":  pickle.New(func() any { return &chunkState{} }),
	"TensorProperties":      pickle.New(func() any { return &propertiesState{} }),
	"MetadataIndex":         pickle.New(func() any { return &indexState{} }),
	"_StorageInfo":          pickle.New(func() any { return &storageState{} }),
	"_MEM_FORMAT_ENCODING":  pickle.Func(ignored),
	"MEM_FORMAT_ENCODING":   pickle.Func(ignored),
}

// ignored makes a value that nothing here reads: a layout, a memory format, a path.
func ignored(pickle.Tuple) (any, error) { return &record{class: "ignored"}, nil }

// newSize makes a torch.Size of ((2, 3),).
func newSize(args pickle.Tuple) (any, error) {
	if len(args) != 1 {
		return nil, errors.New("torch.Size takes one tuple")
	}
	t, ok := args[0].(pickle.Tuple)
	if !ok {
		return nil, errors.New("torch.Size takes a tuple")
	}
	size := make(torchSize, len(t))
	for i, v := range t {
		if size[i], ok = v.(int64); !ok {
			return nil, errors.New("torch.Size of something else than integers")
		}
	}
	return size, nil
}
