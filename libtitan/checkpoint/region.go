package checkpoint

import (
	"fmt"
	"slices"
)

// ReadRegion reads a box of a tensor into dst, row-major and little-endian, assembled from the chunks that it meets.
// dst is exactly the box's bytes.
func (r *Reader) ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error {
	return r.wrap(fqn, r.readRegion(fqn, Box{offsets, sizes}, dst))
}

func (r *Reader) readRegion(fqn string, want Box, dst []byte) error {
	t := r.meta.tensors[fqn]
	if t == nil {
		return fmt.Errorf("no such tensor in the checkpoint")
	}
	if err := within(want.Offsets, want.Sizes, t.shape); err != nil {
		return err
	}
	n, err := byteSize(want.Sizes, t.dtype.Size())
	if err != nil {
		return err
	}
	if int64(len(dst)) != n {
		return fmt.Errorf("%d bytes for a region of %d", len(dst), n)
	}
	if n == 0 {
		return nil
	}
	for i, c := range t.chunks {
		common, ok := c.intersect(want)
		if !ok {
			continue
		}
		if err := r.readChunk(t, i, common, want, dst); err != nil {
			return err
		}
	}
	return nil
}

// intersect is the elements that two boxes share; a scalar always meets itself.
func (a Box) intersect(b Box) (Box, bool) {
	if !a.meets(b) {
		return Box{}, false
	}
	out := Box{make([]int64, len(a.Offsets)), make([]int64, len(a.Offsets))}
	for d := range a.Offsets {
		lo := max(a.Offsets[d], b.Offsets[d])
		hi := min(a.Offsets[d]+a.Sizes[d], b.Offsets[d]+b.Sizes[d])
		if hi <= lo { // an empty box inside another
			return Box{}, false
		}
		out.Offsets[d], out.Sizes[d] = lo, hi-lo
	}
	return out, true
}

// readChunk copies the box common of a chunk to its place in dst, which holds the box want.
func (r *Reader) readChunk(t *tensorMeta, i int, common, want Box, dst []byte) error {
	item, err := r.tensorItem(t, i)
	if err != nil {
		return err
	}
	data, size, err := r.openItem(t.at[i], expandLimit(t, i))
	if err != nil {
		return err
	}
	cp := regionCopy(int64(t.dtype.Size()), common, t.chunks[i], item.strides, want)
	cp.src += item.offset * cp.elem
	return cp.run(data, item.storage.at, size, dst)
}

// regionCopy copies the box common of a chunk, whose strides are in elements, to its place in the box want.
func regionCopy(elem int64, common, chunk Box, strides []int64, want Box) boxCopy {
	dst := contiguous(want.Sizes)
	cp := boxCopy{elem: elem, dims: make([]copyDim, len(common.Sizes))}
	for d, n := range common.Sizes {
		cp.src += (common.Offsets[d] - chunk.Offsets[d]) * strides[d] * elem
		cp.dst += (common.Offsets[d] - want.Offsets[d]) * dst[d] * elem
		cp.dims[d] = copyDim{n, strides[d] * elem, dst[d] * elem}
	}
	return cp
}

func expandLimit(t *tensorMeta, i int) int64 {
	n, _ := byteSize(t.chunks[i].Sizes, t.dtype.Size()) // within a tensor that was checked
	return n + zipOverhead
}

// tensorItem reads how a chunk's tensor lies in its item, once.
func (r *Reader) tensorItem(t *tensorMeta, i int) (*tensorItem, error) {
	if v, ok := r.opened.Load(t.at[i]); ok {
		return v.(*tensorItem), nil
	}
	item, err := r.parseTensorItem(t, i)
	if err != nil {
		return nil, fmt.Errorf("chunk at %v in %s: %w", t.chunks[i].Offsets, t.at[i].path, err)
	}
	r.opened.Store(t.at[i], item)
	return item, nil
}

func (r *Reader) parseTensorItem(t *tensorMeta, i int) (*tensorItem, error) {
	data, size, err := r.openItem(t.at[i], expandLimit(t, i))
	if err != nil {
		return nil, err
	}
	z, err := openZip(data, size)
	if err != nil {
		return nil, err
	}
	v, err := readItem(z)
	if err != nil {
		return nil, err
	}
	item, ok := v.(*tensorItem)
	switch {
	case !ok:
		return nil, fmt.Errorf("the item holds no tensor")
	case item.dtype != t.dtype:
		return nil, fmt.Errorf("the item holds %s where the metadata says %s", item.dtype, t.dtype)
	case !slices.Equal(item.shape, t.chunks[i].Sizes):
		return nil, fmt.Errorf("the item has shape %v where the metadata says %v", item.shape, t.chunks[i].Sizes)
	}
	return item, nil
}

// Stream reads a whole tensor in row-major order, in pieces of at most maxBytes (or one element). The piece is valid
// during the call alone.
func (r *Reader) Stream(fqn string, maxBytes int64, fn func(b []byte) error) error {
	it, ok := r.Item(fqn)
	if !ok || it.Kind != KindTensor {
		return r.wrap(fqn, fmt.Errorf("no such tensor in the checkpoint"))
	}
	return stream(r, it, maxBytes, fn)
}

// stream is [Reader.Stream] of any source.
func stream(src Source, it Item, maxBytes int64, fn func(b []byte) error) error {
	elem := it.DType.Size()
	var buf []byte
	for piece := range pieces(whole(it.Shape), max(1, maxBytes/int64(elem))) {
		n, err := byteSize(piece.Sizes, elem)
		if err != nil {
			return err
		}
		if int64(cap(buf)) < n {
			buf = make([]byte, n)
		}
		if err := src.ReadRegion(it.FQN, piece.Offsets, piece.Sizes, buf[:n]); err != nil {
			return err
		}
		if err := fn(buf[:n]); err != nil {
			return err
		}
	}
	return nil
}

// pieces cuts a region into boxes of at most most elements (but at least one) that follow each other in row-major
// order. A box is valid until the next.
func pieces(region Box, most int64) func(yield func(Box) bool) {
	return func(yield func(Box) bool) {
		if n, err := numel(region.Sizes); err != nil || n == 0 {
			return
		}
		axis, inner := cutAxis(region.Sizes, most)
		at := make([]int64, len(region.Sizes)) // within the region
		b := Box{make([]int64, len(at)), slices.Clone(region.Sizes)}
		for d := range axis {
			b.Sizes[d] = 1
		}
		for {
			step := int64(1)
			if axis < len(at) {
				step = min(max(1, most/inner), region.Sizes[axis]-at[axis])
				b.Sizes[axis] = step
			}
			for d := range at {
				b.Offsets[d] = region.Offsets[d] + at[d]
			}
			if !yield(b) || !advance(at, region.Sizes, axis, step) {
				return
			}
		}
	}
}

// whole is the region of all of a shape.
func whole(shape []int64) Box { return Box{make([]int64, len(shape)), shape} }

// cutAxis is the dim along which pieces are cut: all dims inside it fit whole, inner elements together.
func cutAxis(shape []int64, most int64) (axis int, inner int64) {
	axis, inner = len(shape)-1, 1
	for axis > 0 && inner*shape[axis] <= most {
		inner *= shape[axis]
		axis--
	}
	return max(axis, 0), inner
}

// advance moves offsets on by step along axis, carrying to the outer dims; false at the end.
func advance(offsets, shape []int64, axis int, step int64) bool {
	for d := min(axis, len(shape)-1); d >= 0; d-- {
		offsets[d] += step
		if offsets[d] < shape[d] {
			return true
		}
		offsets[d], step = 0, 1
	}
	return false
}
