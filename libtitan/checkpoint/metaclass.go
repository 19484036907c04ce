package checkpoint

import (
	"errors"
	"fmt"

	"titan/libtitan/dtype"
)

// The classes of a .metadata. Fields that this package has no use for are dropped, known or not: newer versions add
// some.

type metaClassID int32

const (
	metadataClass   metaClassID = iota
	tensorClass                 // TensorStorageMetadata
	chunkClass                  // ChunkStorageMetadata
	propertiesClass             // TensorProperties
	indexClass                  // MetadataIndex
	storageClassID              // _StorageInfo
	bytesClass                  // BytesStorageMetadata
	otherClass                  // StorageMeta
)

type metaFuncID int32

const (
	torchSizeFunc metaFuncID = iota
	ignoredFunc              // makes a value that nothing here reads
)

// metaObjects are the instances, by class. Values in them point into the machine's tables.
type metaObjects struct {
	tops       []metaTop
	tensors    []metaTensor
	chunks     []metaChunk
	properties []dtype.DType
	indices    []metaIndex
	storages   []metaStorage
}

type metaTop struct{ items, planner, storage metaValue }

type metaTensor struct {
	dtype  dtype.DType
	size   metaValue
	chunks metaValue // a list
}

// metaRun is a run of ints.
type metaRun struct{ at, n int32 }

type metaChunk struct{ offsets, sizes metaRun }

type metaIndex struct {
	fqn    int32 // place in strs, -1 if missing
	hint   int32 // where the chunk may stand among its tensor's; -1 if unknown
	tensor bool  // whether there is an offset: a bytes item has none
	offset metaRun
}

type metaStorage struct {
	path           int32 // place in strs, -1 if missing
	transforms     int32 // place in lists, -1 for none
	offset, length int64
}

// add makes an instance and says where it stands in its table.
func (o *metaObjects) add(class metaClassID) int64 {
	switch class {
	case metadataClass:
		o.tops = append(o.tops, metaTop{})
		return int64(len(o.tops) - 1)
	case tensorClass:
		o.tensors = append(o.tensors, metaTensor{})
		return int64(len(o.tensors) - 1)
	case chunkClass:
		o.chunks = append(o.chunks, metaChunk{})
		return int64(len(o.chunks) - 1)
	case propertiesClass:
		o.properties = append(o.properties, dtype.Invalid)
		return int64(len(o.properties) - 1)
	case indexClass:
		o.indices = append(o.indices, metaIndex{fqn: -1, hint: -1})
		return int64(len(o.indices) - 1)
	case storageClassID:
		o.storages = append(o.storages, metaStorage{path: -1, transforms: -1})
		return int64(len(o.storages) - 1)
	}
	return 0
}

// setState gives an instance its fields.
func (m *metaMachine) setState(class metaClassID, n int, state metaValue) error {
	switch class {
	case propertiesClass:
		return m.setProperties(n, state)
	case bytesClass, otherClass:
		return nil
	}
	if state.kind != metaDict {
		return fmt.Errorf("%s without a dict of fields", metaClassNames[class])
	}
	fields := m.dicts[state.n].items
	for i := 0; i < len(fields); i += 2 {
		if fields[i].kind != metaStr {
			return fmt.Errorf("%s: a field's name is no string", metaClassNames[class])
		}
		if name := m.strs[fields[i].n]; !m.setField(class, n, name, fields[i+1]) {
			return fmt.Errorf("%s: field %.100q has another type than expected", metaClassNames[class], name)
		}
	}
	return nil
}

// setField reports whether v has the field's type. A field that is not known fits.
func (m *metaMachine) setField(class metaClassID, n int, name string, v metaValue) bool {
	switch class {
	case metadataClass:
		return m.tops[n].set(name, v)
	case tensorClass:
		return m.setTensor(&m.tensors[n], name, v)
	case chunkClass:
		c := &m.chunks[n]
		switch name {
		case "offsets":
			c.offsets = v.run()
			return v.kind == metaSize
		case "sizes":
			c.sizes = v.run()
			return v.kind == metaSize
		}
	case indexClass:
		return m.indices[n].set(name, v)
	case storageClassID:
		return m.storages[n].set(name, v)
	}
	return true
}

func (v metaValue) run() metaRun { return metaRun{int32(v.n), v.size} }

func (t *metaTop) set(name string, v metaValue) bool {
	switch name {
	case "state_dict_metadata":
		t.items = v
	case "planner_data":
		t.planner = v
	case "storage_data":
		t.storage = v
	}
	return true
}

func (m *metaMachine) setTensor(t *metaTensor, name string, v metaValue) bool {
	switch name {
	case "properties":
		if v.kind != metaObject || metaClassID(v.size) != propertiesClass {
			return false
		}
		t.dtype = m.properties[v.n]
	case "size":
		t.size = v
		return v.kind == metaSize
	case "chunks":
		t.chunks = v
		return v.kind == metaList
	}
	return true
}

// setProperties takes the dtype of (dtype, layout, requires_grad, memory format, pin_memory).
func (m *metaMachine) setProperties(n int, state metaValue) error {
	if state.kind != metaTuple || state.size == 0 {
		return errors.New("TensorProperties without its tuple")
	}
	v := m.tuples[state.n]
	if v.kind != metaDType {
		return errors.New("TensorProperties without a dtype")
	}
	m.properties[n] = dtype.DType(v.n)
	return nil
}

func (x *metaIndex) set(name string, v metaValue) bool {
	switch name {
	case "fqn":
		x.fqn = int32(v.n)
		return v.kind == metaStr
	case "index":
		if v.kind == metaInt && v.n == int64(int32(v.n)) {
			x.hint = int32(v.n)
		}
	case "offset":
		if x.tensor = v.kind == metaSize; x.tensor {
			x.offset = v.run()
		}
		return x.tensor || v.kind == metaNone
	}
	return true
}

func (s *metaStorage) set(name string, v metaValue) bool {
	switch name {
	case "relative_path":
		s.path = int32(v.n)
		return v.kind == metaStr
	case "offset":
		s.offset = v.n
		return v.kind == metaInt
	case "length":
		s.length = v.n
		return v.kind == metaInt
	case "transform_descriptors":
		if v.kind == metaList {
			s.transforms = int32(v.n)
		}
		return v.kind == metaList || v.kind == metaNone
	}
	return true
}

var metaClassNames = [...]string{metadataClass: "Metadata", tensorClass: "TensorStorageMetadata", chunkClass: "ChunkStorageMetadata",
	propertiesClass: "TensorProperties", indexClass: "MetadataIndex", storageClassID: "_StorageInfo",
	bytesClass: "BytesStorageMetadata", otherClass: "StorageMeta"}

// metaGlobal knows the names that PyTorch 1.13 to 2.14 put in a .metadata.
func metaGlobal(module, name string) (metaValue, bool) {
	ignored := metaValue{kind: metaFunc, n: int64(ignoredFunc)}
	switch module {
	case metadataModule, "torch.distributed._shard.checkpoint.metadata",
		filesystemModule, "torch.distributed._shard.checkpoint.filesystem",
		"torch.distributed._shard.sharded_tensor.metadata":
		if name == "_MEM_FORMAT_ENCODING" || name == "MEM_FORMAT_ENCODING" {
			return ignored, true
		}
		for id, class := range metaClassNames {
			if class == name {
				return metaValue{kind: metaClass, n: int64(id)}, true
			}
		}
	case "torch":
		if name == "Size" {
			return metaValue{kind: metaFunc, n: int64(torchSizeFunc)}, true
		}
		dt, err := dtype.Parse(name)
		return metaValue{kind: metaDType, n: int64(dt)}, err == nil && dt.String() == name
	case "torch.serialization":
		return ignored, name == "_get_layout"
	case "pathlib", "pathlib._local":
		switch name {
		case "PosixPath", "PurePosixPath", "WindowsPath", "PureWindowsPath":
			return ignored, true
		}
	}
	return metaValue{}, false
}
