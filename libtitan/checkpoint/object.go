package checkpoint

import (
	"errors"
	"fmt"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

const maxObject = 256 << 20 // bytes that a compressed object may expand to

// TensorValue stands for a tensor inside an object; its data are not read.
type TensorValue struct {
	DType dtype.DType
	Shape []int64
}

// Size is a torch.Size.
type Size []int64

// Device is a torch.device, such as cuda:0.
type Device string

// Object reads a Python value: nil, bool, int64, *big.Int, float64, string, []byte, []any for a list, pickle.Tuple,
// *pickle.Dict, *pickle.Set, complex128, dtype.DType, [Size], [Device], or *TensorValue. A value of a class that is not allowed here is
// an error that names the class; nothing of it runs.
func (r *Reader) Object(fqn string) (any, error) {
	v, err := r.object(fqn)
	return v, r.wrap(fqn, err)
}

func (r *Reader) object(fqn string) (any, error) {
	z, err := r.objectZip(fqn)
	if err != nil {
		return nil, err
	}
	v, err := readItem(z)
	if err != nil {
		return nil, err
	}
	p := plainer{left: 1<<16 + 16*z.records["data.pkl"].size}
	return p.plain(v, 0)
}

// ObjectZip reads the torch.save zip of an object as it is stored, and checks that it is one.
func (r *Reader) ObjectZip(fqn string) ([]byte, error) {
	z, err := r.objectZip(fqn)
	if err != nil {
		return nil, r.wrap(fqn, err)
	}
	if z.size > maxObject {
		return nil, r.wrap(fqn, fmt.Errorf("an object of %d bytes, more than the %d that are read at once", z.size, int64(maxObject)))
	}
	b := make([]byte, z.size)
	return b, r.wrap(fqn, readFull(z.r, b, 0))
}

func (r *Reader) objectZip(fqn string) (*zipFile, error) {
	at := r.meta.objects[fqn]
	if at == nil {
		return nil, errors.New("no such object in the checkpoint")
	}
	data, size, err := r.openWhole(at, maxObject)
	if err != nil {
		return nil, err
	}
	return openZip(data, size)
}

// plainer copies a pickled value into one that is a tree: a pickle may hold itself, or grow without end by sharing.
type plainer struct{ left int64 }

const maxDepth = 200

var errTooDeep = fmt.Errorf("a value nested more than %d deep, or that holds itself", maxDepth)

func (p *plainer) plain(v any, depth int) (any, error) {
	if p.left--; p.left < 0 || depth > maxDepth {
		return nil, errTooDeep
	}
	var err error
	switch v := v.(type) {
	case string:
		return strings.Clone(v), nil // the pickle's memory does not stay
	case *tensorItem:
		return &TensorValue{v.dtype, v.shape}, nil
	case pickle.Tuple:
		items, err := p.all(v, depth)
		return pickle.Tuple(items), err
	case *pickle.List:
		return p.all(v.Items, depth)
	case *pickle.Set:
		out := &pickle.Set{Frozen: v.Frozen}
		out.Items, err = p.all(v.Items, depth)
		return out, err
	case *pickle.Dict:
		out := &pickle.Dict{Pairs: make([]pickle.Pair, len(v.Pairs))}
		for i, pair := range v.Pairs {
			if out.Pairs[i].Key, err = p.plain(pair.Key, depth+1); err != nil {
				return nil, err
			}
			if out.Pairs[i].Value, err = p.plain(pair.Value, depth+1); err != nil {
				return nil, err
			}
		}
		return out, nil
	case *storage, storageKind, pickle.Func, pickle.New:
		return nil, errors.New("a value that stands for no Python data")
	}
	return v, nil
}

func (p *plainer) all(items []any, depth int) ([]any, error) {
	out := make([]any, len(items))
	for i, v := range items {
		var err error
		if out[i], err = p.plain(v, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}
