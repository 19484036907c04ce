package checkpoint

import (
	"crypto/sha256"
	"fmt"
	"io"

	"titan/libtitan/pickle"
)

// Modules of PyTorch that hold the classes of .metadata.
const (
	metadataModule   = "torch.distributed.checkpoint.metadata"
	filesystemModule = "torch.distributed.checkpoint.filesystem"
)

// writeMetadata writes the .metadata of a layout: protocol 2, which every PyTorch 2.x reads, with the attributes that
// newer versions look for and older ones ignore.
func writeMetadata(w io.Writer, s *State, files []*outFile, transforms []string) error {
	e := metaEncoder{pickle.NewEncoder(w, 2)}
	e.object(metadataModule, "Metadata")
	e.Op('}')
	e.Op('(')
	e.Str("state_dict_metadata")
	e.dict(len(s.Tensors)+len(s.Objects), func() {
		for i := range s.Tensors {
			e.Str(s.Tensors[i].FQN)
			e.tensor(&s.Tensors[i])
		}
		for _, o := range s.Objects {
			e.Str(o.FQN)
			e.object(metadataModule, "BytesStorageMetadata")
		}
	})
	e.Str("planner_data")
	if err := e.planner(s); err != nil {
		return err
	}
	e.Str("storage_data")
	e.dict(len(files), func() {
		for _, f := range files {
			for _, it := range f.items {
				e.storage(it, transforms)
			}
		}
	})
	e.Str("storage_meta")
	e.storageMeta(saveID(files))
	e.Str("version")
	e.Str("1.0.0")
	e.Op('u', 'b')
	return e.Stop()
}

type metaEncoder struct{ *pickle.Encoder }

// object pushes an empty instance of a class.
func (e metaEncoder) object(module, class string) {
	e.Global(module, class)
	e.Op(')', 0x81)
}

// dict pushes a dict of n entries that add pushes.
func (e metaEncoder) dict(n int, add func()) {
	e.Op('}')
	if n > 0 {
		e.Op('(')
		add()
		e.Op('u')
	}
}

func (e metaEncoder) size(n []int64) {
	e.Global("torch", "Size")
	e.Ints(n)
	e.EndTuple(1)
	e.Op('R')
}

func (e metaEncoder) tensor(t *Tensor) {
	e.object(metadataModule, "TensorStorageMetadata")
	e.dict(3, func() {
		e.Str("properties")
		e.properties(t)
		e.Str("size")
		e.size(t.Shape)
		e.Str("chunks")
		e.Op(']', '(')
		for _, c := range t.Chunks {
			e.object(metadataModule, "ChunkStorageMetadata")
			e.dict(2, func() {
				e.Str("offsets")
				e.size(c.Offsets)
				e.Str("sizes")
				e.size(c.Sizes)
			})
			e.Op('b')
		}
		e.Op('e')
	})
	e.Op('b')
}

// properties pushes TensorProperties: dtype, layout, requires_grad, memory format 0 (contiguous), pin_memory.
func (e metaEncoder) properties(t *Tensor) {
	e.object(metadataModule, "TensorProperties")
	e.Op('(')
	e.Global("torch", t.DType.String())
	e.Global("torch.serialization", "_get_layout")
	e.Str("torch.strided")
	e.EndTuple(1)
	e.Op('R')
	e.Bool(false)
	e.Global(metadataModule, "_MEM_FORMAT_ENCODING")
	e.Int(0)
	e.EndTuple(1)
	e.Op('R')
	e.Bool(false)
	e.EndTuple(5)
	e.Op('b')
}

func (e metaEncoder) planner(s *State) error {
	var err error
	entry := func(fqn string, p []any) {
		e.Str(fqn)
		if e2 := e.Value(pickle.Tuple(nestedPath(fqn, p))); e2 != nil && err == nil {
			err = fmt.Errorf("checkpoint: path of %s: %w", fqn, e2)
		}
	}
	e.dict(len(s.Tensors)+len(s.Objects), func() {
		for i := range s.Tensors {
			entry(s.Tensors[i].FQN, s.Tensors[i].Path)
		}
		for _, o := range s.Objects {
			entry(o.FQN, o.Path)
		}
	})
	return err
}

// storage pushes a MetadataIndex and its _StorageInfo.
func (e metaEncoder) storage(it *writeItem, transforms []string) {
	e.object(metadataModule, "MetadataIndex")
	e.dict(3, func() {
		e.Str("fqn")
		e.Str(it.fqn)
		e.Str("index")
		if it.chunk == nil {
			e.Op('N')
			return
		}
		e.Int(int64(it.index))
		e.Str("offset")
		e.size(it.chunk.Offsets)
	})
	e.Op('b')
	e.object(filesystemModule, "_StorageInfo")
	e.dict(3, func() {
		e.Str("relative_path")
		e.Str(it.file.name)
		e.Str("offset")
		e.Int(it.offset)
		e.Str("length")
		e.Int(it.length)
		if transforms != nil {
			e.Str("transform_descriptors")
			e.Op(']', '(')
			for _, t := range transforms {
				e.Str(t)
			}
			e.Op('e')
		}
	})
	e.Op('b')
}

func (e metaEncoder) storageMeta(saveID string) {
	e.object(metadataModule, "StorageMeta")
	e.dict(4, func() {
		e.Str("checkpoint_id")
		e.Op('N')
		e.Str("save_id")
		e.Str(saveID)
		e.Str("load_id")
		e.Op('N')
		e.Str("modules")
		e.Op(']')
	})
	e.Op('b')
}

// saveID derives the checkpoint's UUID from the names, places and CRCs of its items, so that the same state gives the
// same bytes.
func saveID(files []*outFile) string {
	h := sha256.New()
	for _, f := range files {
		for _, it := range f.items {
			fmt.Fprintf(h, "%q %s %d %d %08x\n", it.fqn, f.name, it.offset, it.length, it.crc)
		}
	}
	u := h.Sum(nil)[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80 // version 8 (custom), RFC 9562's variant
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}
