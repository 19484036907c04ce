package checkpoint

import (
	"bytes"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

// storageClass is the torch class that holds a dtype's elements. The dtypes without one live in an UntypedStorage,
// counted in bytes.
var storageClass = map[dtype.DType]string{
	dtype.Float32: "FloatStorage", dtype.Float64: "DoubleStorage", dtype.Float16: "HalfStorage", dtype.BFloat16: "BFloat16Storage",
	dtype.Int64: "LongStorage", dtype.Int32: "IntStorage", dtype.Int16: "ShortStorage", dtype.Int8: "CharStorage",
	dtype.UInt8: "ByteStorage", dtype.Bool: "BoolStorage", dtype.Complex64: "ComplexFloatStorage", dtype.Complex128: "ComplexDoubleStorage",
}

// tensorPickle is the data.pkl of a contiguous tensor, opcode for opcode as torch.save writes it.
func tensorPickle(dt dtype.DType, sizes []int64) ([]byte, error) {
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
	if err := encodeTensor(e, dt, sizes, "0"); err != nil {
		return nil, err
	}
	err := e.Stop()
	return b.Bytes(), err
}

// encodeTensor pushes a contiguous tensor that is the whole of the storage key.
func encodeTensor(e *pickle.Encoder, dt dtype.DType, sizes []int64, key string) error {
	elems, err := numel(sizes)
	if err != nil {
		return err
	}
	class, typed := storageClass[dt]
	if typed {
		e.Global("torch._utils", "_rebuild_tensor_v2")
	} else {
		e.Global("torch._utils", "_rebuild_tensor_v3")
	}
	e.Op('(', '(')
	e.Str("storage")
	if typed {
		e.Global("torch", class)
	} else {
		e.Global("torch.storage", "UntypedStorage")
		elems *= int64(dt.Size())
	}
	e.Str(key)
	e.Str("cpu")
	e.Int(elems)
	e.EndTuple(5)
	e.Op('Q')
	e.Int(0) // storage offset
	e.Ints(sizes)
	e.Ints(contiguous(sizes))
	e.Bool(false) // requires_grad
	e.Global("collections", "OrderedDict")
	e.Op(')', 'R') // backward hooks
	e.Put()
	if !typed {
		e.Global("torch", dt.String())
	}
	e.EndTuple(6)
	e.Op('R')
	e.Put()
	return nil
}

// tensorZips are the zips of a checkpoint's chunks. Those of one dtype and shape share theirs, which is 1.5 KB.
type tensorZips map[zipShape]zipItem

type zipShape struct {
	dtype dtype.DType
	sizes string
}

func (z tensorZips) get(dt dtype.DType, sizes []int64) (zipItem, error) {
	shape := zipShape{dt, offsetKey(sizes)}
	if zip, ok := z[shape]; ok {
		return zip, nil
	}
	pkl, err := tensorPickle(dt, sizes)
	if err != nil {
		return zipItem{}, err
	}
	n, err := byteSize(sizes, dt.Size())
	if err != nil {
		return zipItem{}, err
	}
	z[shape] = newZipItem(pkl, n)
	return z[shape], nil
}

// objectPickle is the data.pkl of a plain Python value, as [Reader.Object] gives it.
func objectPickle(v any) ([]byte, error) {
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
	if err := e.Value(spelled(v)); err != nil {
		return nil, err
	}
	err := e.Stop()
	return b.Bytes(), err
}

// objectZip is a plain Python value as a torch.save zip.
func objectZip(v any) ([]byte, error) {
	pkl, err := objectPickle(v)
	if err != nil {
		return nil, err
	}
	zip := newZipItem(pkl, -1)
	return append(zip.head, zip.tail(0)...), nil
}

// spelled puts in place of PyTorch's values the names and calls that make them.
func spelled(v any) any {
	all := func(items []any) []any {
		out := make([]any, len(items))
		for i, x := range items {
			out[i] = spelled(x)
		}
		return out
	}
	torch := func(name string, arg any) any {
		return pickle.Call{Func: pickle.Global{Module: "torch", Name: name}, Args: pickle.Tuple{arg}}
	}
	switch v := v.(type) {
	case dtype.DType:
		return pickle.Global{Module: "torch", Name: v.String()}
	case Size:
		t := make(pickle.Tuple, len(v))
		for i, n := range v {
			t[i] = n
		}
		return torch("Size", t)
	case Device:
		return torch("device", string(v))
	case complex128:
		return pickle.Call{Func: pickle.Global{Module: "__builtin__", Name: "complex"}, Args: pickle.Tuple{real(v), imag(v)}}
	case pickle.Tuple:
		return pickle.Tuple(all(v))
	case []any:
		return all(v)
	case *pickle.Set:
		return &pickle.Set{Items: all(v.Items), Frozen: v.Frozen}
	case *pickle.Dict:
		out := &pickle.Dict{Pairs: make([]pickle.Pair, len(v.Pairs))}
		for i, p := range v.Pairs {
			out.Pairs[i] = pickle.Pair{Key: spelled(p.Key), Value: spelled(p.Value)}
		}
		return out
	}
	return v
}
