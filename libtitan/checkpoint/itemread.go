package checkpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

const maxPickle = 1 << 30 // bytes of one pickle

// tensorItem is a tensor in a torch.save zip: a strided view of one storage.
type tensorItem struct {
	dtype          dtype.DType
	shape, strides []int64 // strides in elements
	offset         int64   // of the first element in the storage, in elements
	storage        *storage
}

// storage is a record data/K.
type storage struct {
	kind  storageKind
	key   string
	bytes int64
	at    int64 // where its bytes start in the item
}

// storageKind is a torch storage class.
type storageKind struct {
	dtype   dtype.DType
	untyped bool // counted in bytes
}

// itemOps are the opcodes of a data.pkl that torch.save writes by any protocol.
var itemOps = pickle.Ops(`PROTO FRAME MARK STOP NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 LONG4 BINFLOAT
	BINUNICODE SHORT_BINUNICODE BINUNICODE8 SHORT_BINBYTES BINBYTES BINBYTES8 BINSTRING SHORT_BINSTRING
	EMPTY_DICT EMPTY_LIST EMPTY_TUPLE EMPTY_SET TUPLE TUPLE1 TUPLE2 TUPLE3 APPEND APPENDS SETITEM SETITEMS ADDITEMS
	FROZENSET BINGET LONG_BINGET BINPUT LONG_BINPUT MEMOIZE GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD BINPERSID`)

// readItem reads the value of a torch.save zip; tensors come as *tensorItem, their data unread.
func readItem(z *zipFile) (any, error) {
	if err := littleEndian(z); err != nil {
		return nil, err
	}
	pkl, err := z.read("data.pkl", maxPickle)
	if err != nil {
		return nil, err
	}
	d := itemDecoder{storages: map[string]*storage{}, locate: z.locate}
	return pickle.Decode(pkl, pickle.Options{Opcodes: itemOps, Globals: itemGlobals, Persistent: d.persistent})
}

// littleEndian refuses the items of a big-endian machine; files before torch 2.1 do not say and are little.
func littleEndian(z *zipFile) error {
	if _, ok := z.records["byteorder"]; !ok {
		return nil
	}
	order, err := z.read("byteorder", 16)
	if err == nil && order != "little" {
		err = fmt.Errorf("byte order %q: only little-endian data is read", order)
	}
	return err
}

// itemDecoder keeps the storages that a pickle names; locate finds the data of a new one.
type itemDecoder struct {
	storages map[string]*storage
	locate   func(*storage) error
}

// persistent resolves ("storage", class, key, location, numel[, view]).
func (d *itemDecoder) persistent(id any) (any, error) {
	t, ok := id.(pickle.Tuple)
	if !ok || len(t) < 5 || len(t) > 6 || t[0] != "storage" {
		return nil, errors.New("a persistent id that is no storage")
	}
	kind, ok1 := t[1].(storageKind)
	key, ok2 := t[2].(string)
	n, ok3 := t[4].(int64)
	if !ok1 || !ok2 || !ok3 || n < 0 || n > math.MaxInt64/16 {
		return nil, errors.New("a storage without class, key or size")
	}
	if len(t) == 6 && t[5] != nil {
		return nil, errors.New("a storage that is a view of another is not read")
	}
	if t[3] == "meta" {
		return nil, errors.New("a tensor of device meta has no data")
	}
	if s, ok := d.storages[key]; ok {
		return s, nil
	}
	s := &storage{kind: kind, key: strings.Clone(key), bytes: n}
	if !kind.untyped {
		s.bytes *= int64(kind.dtype.Size())
	}
	d.storages[s.key] = s
	return s, d.locate(s)
}

// locate finds a storage's record.
func (z *zipFile) locate(s *storage) error {
	r, ok := z.records["data/"+s.key]
	if !ok {
		return fmt.Errorf("no record %.100q", "data/"+s.key)
	}
	if r.size != s.bytes {
		return fmt.Errorf("record %.100q holds %d bytes where the tensor's storage has %d", r.name, r.size, s.bytes)
	}
	var err error
	s.at, err = z.start(r)
	return err
}

// itemGlobals knows the names that torch.save writes for tensors and plain values.
func itemGlobals(module, name string) (any, bool) {
	switch module {
	case "torch._utils":
		f, ok := rebuilders[name]
		return f, ok
	case "torch", "torch.cuda":
		return torchName(name)
	case "torch.storage":
		return storageKind{untyped: true}, name == "UntypedStorage"
	case "collections":
		return pickle.Func(func(pickle.Tuple) (any, error) { return &pickle.Dict{}, nil }), name == "OrderedDict"
	case "_codecs":
		return pickle.Func(latin1), name == "encode"
	case "__builtin__", "builtins":
		f, ok := builtins[name]
		return f, ok
	}
	return nil, false
}

func torchName(name string) (any, bool) {
	switch name {
	case "Size":
		return pickle.Func(func(args pickle.Tuple) (any, error) {
			if len(args) == 1 {
				if size, ok := ints(args[0]); ok {
					return Size(size), nil
				}
			}
			return nil, errors.New("torch.Size of something else than a tuple of integers")
		}), true
	case "device":
		return pickle.Func(newDevice), true
	}
	for dt, class := range storageClass {
		if class == name {
			return storageKind{dtype: dt}, true
		}
	}
	dt, err := dtype.Parse(name)
	return dt, err == nil && dt.String() == name
}

// newDevice makes a torch.device of ("cpu",) or ("cuda", 0).
func newDevice(args pickle.Tuple) (any, error) {
	if len(args) == 0 || len(args) > 2 {
		return nil, errors.New("torch.device without a name")
	}
	name, ok := args[0].(string)
	if len(args) == 2 && args[1] != nil {
		var index int64
		index, ok2 := args[1].(int64)
		name, ok = fmt.Sprintf("%s:%d", name, index), ok && ok2
	}
	if !ok {
		return nil, errors.New("torch.device of something else than a name and an index")
	}
	return Device(strings.Clone(name)), nil
}

var rebuilders = map[string]pickle.Func{
	"_rebuild_tensor":    func(args pickle.Tuple) (any, error) { return rebuild(args, 4, false) },
	"_rebuild_tensor_v2": func(args pickle.Tuple) (any, error) { return rebuild(args, 6, false) },
	"_rebuild_tensor_v3": func(args pickle.Tuple) (any, error) { return rebuild(args, 7, true) },
	"_rebuild_parameter": func(args pickle.Tuple) (any, error) {
		if len(args) > 0 {
			if t, ok := args[0].(*tensorItem); ok {
				return t, nil
			}
		}
		return nil, errors.New("a parameter without a tensor")
	},
}

// rebuild makes a tensor of (storage, offset, size, stride, requires_grad, hooks[, dtype][, metadata]).
func rebuild(args pickle.Tuple, known int, ownDType bool) (any, error) {
	if len(args) < known {
		return nil, fmt.Errorf("%d arguments where %d are needed", len(args), known)
	}
	t := &tensorItem{}
	var ok1, ok2, ok3, ok4 bool
	t.storage, ok1 = args[0].(*storage)
	t.offset, ok2 = args[1].(int64)
	t.shape, ok3 = ints(args[2])
	t.strides, ok4 = ints(args[3])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, errors.New("arguments of other types than expected")
	}
	t.dtype = t.storage.kind.dtype
	if ownDType {
		var ok bool
		if t.dtype, ok = args[6].(dtype.DType); !ok {
			return nil, errors.New("a tensor without a dtype")
		}
	}
	if len(args) > known {
		if d, ok := args[known].(*pickle.Dict); args[known] != nil && (!ok || len(d.Pairs) > 0) {
			return nil, errors.New("a conjugate, negated or subclassed tensor is not read")
		}
	}
	return t, t.check()
}

// check holds the view inside its storage.
func (t *tensorItem) check() error {
	size := int64(t.dtype.Size())
	n, err := byteSize(t.shape, int(size))
	switch {
	case err != nil:
		return err
	case size == 0:
		return errors.New("a tensor without a dtype")
	case len(t.strides) != len(t.shape):
		return fmt.Errorf("shape %v with strides %v", t.shape, t.strides)
	case t.offset < 0:
		return fmt.Errorf("storage offset %d", t.offset)
	case n == 0:
		return nil
	}
	last, room := t.offset, t.storage.bytes/size
	for i, d := range t.shape {
		s := t.strides[i]
		if s < 0 || s > 0 && d-1 > (math.MaxInt64-last)/s {
			return fmt.Errorf("shape %v with strides %v", t.shape, t.strides)
		}
		last += s * (d - 1)
	}
	if last >= room {
		return fmt.Errorf("shape %v, strides %v and offset %d reach beyond the storage's %d elements", t.shape, t.strides, t.offset, room)
	}
	return nil
}

func ints(v any) ([]int64, bool) {
	t, ok := v.(pickle.Tuple)
	out := make([]int64, len(t))
	for i := 0; ok && i < len(t); i++ {
		out[i], ok = t[i].(int64)
	}
	return out, ok
}

// latin1 is _codecs.encode(text, "latin1"), which spells bytes by protocol 2.
func latin1(args pickle.Tuple) (any, error) {
	if len(args) != 2 || args[1] != "latin1" && args[1] != "latin-1" {
		return nil, errors.New("an encoding other than latin1")
	}
	text, ok := args[0].(string)
	if !ok {
		return nil, errors.New("latin1 of no string")
	}
	b := make([]byte, 0, len(text))
	for _, r := range text {
		if r > 0xff {
			return nil, errors.New("latin1 of a wider character")
		}
		b = append(b, byte(r))
	}
	return b, nil
}

var builtins = map[string]pickle.Func{
	"bytes":     newBytes,
	"bytearray": newBytes,
	"set":       func(args pickle.Tuple) (any, error) { return newSet(args, false) },
	"frozenset": func(args pickle.Tuple) (any, error) { return newSet(args, true) },
	"complex": func(args pickle.Tuple) (any, error) {
		if len(args) == 2 {
			re, ok1 := args[0].(float64)
			im, ok2 := args[1].(float64)
			if ok1 && ok2 {
				return complex(re, im), nil
			}
		}
		return nil, errors.New("complex of something else than two floats")
	},
}

func newBytes(args pickle.Tuple) (any, error) {
	switch len(args) {
	case 0:
		return []byte{}, nil
	case 1:
		if b, ok := args[0].([]byte); ok {
			return b, nil
		}
	}
	return latin1(args)
}

func newSet(args pickle.Tuple, frozen bool) (any, error) {
	s := &pickle.Set{Frozen: frozen}
	if len(args) == 0 {
		return s, nil
	}
	list, ok := args[0].(*pickle.List)
	if !ok || len(args) > 1 {
		return nil, errors.New("a set of no list")
	}
	s.Items = slices.Clone(list.Items)
	return s, nil
}
