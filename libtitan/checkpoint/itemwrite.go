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
	elems, err := numel(sizes)
	if err != nil {
		return nil, err
	}
	class, typed := storageClass[dt]
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
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
	e.Str("0")
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
	err = e.Stop()
	return b.Bytes(), err
}

// objectPickle is the data.pkl of a plain Python value.
func objectPickle(v any) ([]byte, error) {
	var b bytes.Buffer
	e := pickle.NewEncoder(&b, 2)
	if err := e.Value(v); err != nil {
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
