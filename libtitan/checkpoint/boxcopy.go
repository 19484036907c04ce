package checkpoint

import (
	"cmp"
	"io"
	"slices"
)

// boxCopy copies a box of elements from a strided source that is read by ranges into a strided destination in memory.
type boxCopy struct {
	elem     int64 // bytes an element
	dims     []copyDim
	src, dst int64 // of the first element, in bytes
}

// copyDim is one dim of the box: its length and how far a step goes on either side, in bytes.
type copyDim struct{ n, src, dst int64 }

// simplify drops dims of one element, orders the rest as they lie in the source, and joins those that run on into each
// other, so that what remains is as few and as long runs as there are.
func (c *boxCopy) simplify() {
	c.dims = slices.DeleteFunc(c.dims, func(d copyDim) bool { return d.n == 1 })
	slices.SortStableFunc(c.dims, func(a, b copyDim) int { return cmp.Compare(b.src, a.src) })
	out := c.dims[:0]
	for _, d := range c.dims {
		if k := len(out) - 1; k >= 0 && out[k].src == d.n*d.src && out[k].dst == d.n*d.dst {
			out[k] = copyDim{out[k].n * d.n, d.src, d.dst}
			continue
		}
		out = append(out, d)
	}
	c.dims = out
}

const (
	windowBytes = 1 << 16
	directBytes = 1 << 15 // a run this long is read straight into place
)

// run moves the bytes: from offset base of r, whose data end at end.
func (c *boxCopy) run(r io.ReaderAt, base, end int64, dst []byte) error {
	for _, d := range c.dims {
		if d.n == 0 {
			return nil
		}
	}
	c.simplify()
	inner := copyDim{1, c.elem, c.elem}
	if k := len(c.dims) - 1; k >= 0 {
		inner = c.dims[k]
		c.dims = c.dims[:k]
	}
	w := window{r: r, end: end}
	for k := len(c.dims) - 1; k >= 0 && w.ahead == 0; k-- {
		if c.dims[k].src <= windowBytes/2 {
			w.ahead = windowBytes // the next run is near
		}
	}
	line := func(src, dst0 int64) error { return c.line(&w, inner, base+src, dst[dst0:]) }
	return c.walk(line)
}

// walk calls line for each setting of the outer dims.
func (c *boxCopy) walk(line func(src, dst int64) error) error {
	at := make([]int64, len(c.dims))
	src, dst := c.src, c.dst
	for {
		if err := line(src, dst); err != nil {
			return err
		}
		k := len(at) - 1
		for ; k >= 0; k-- {
			d := c.dims[k]
			at[k]++
			src, dst = src+d.src, dst+d.dst
			if at[k] < d.n {
				break
			}
			at[k], src, dst = 0, src-d.n*d.src, dst-d.n*d.dst
		}
		if k < 0 {
			return nil
		}
	}
}

// line copies the innermost dim: one run where both sides are dense, else element by element.
func (c *boxCopy) line(w *window, d copyDim, src int64, dst []byte) error {
	if d.src == c.elem && d.dst == c.elem {
		return w.copy(dst[:d.n*c.elem], src)
	}
	if d.src == 0 { // an expanded tensor
		d.src = c.elem
		for i := range d.n {
			if err := w.copy(dst[i*d.dst:i*d.dst+c.elem], src); err != nil {
				return err
			}
		}
		return nil
	}
	for i := int64(0); i < d.n; {
		k := min(d.n-i, max(1, windowBytes/d.src))
		b, err := w.bytes(src+i*d.src, (k-1)*d.src+c.elem)
		if err != nil {
			return err
		}
		for j := range k {
			copy(dst[(i+j)*d.dst:(i+j)*d.dst+c.elem], b[j*d.src:])
		}
		i += k
	}
	return nil
}

// window reads a source through a buffer, so that many short runs cost few reads.
type window struct {
	r     io.ReaderAt
	end   int64
	ahead int64 // bytes to read beyond a short run
	buf   []byte
	at    int64
}

// copy fills dst from off.
func (w *window) copy(dst []byte, off int64) error {
	if len(dst) >= directBytes || w.ahead == 0 {
		return readFull(w.r, dst, off)
	}
	b, err := w.bytes(off, int64(len(dst)))
	copy(dst, b)
	return err
}

// bytes returns n bytes at off, valid until the next call.
func (w *window) bytes(off, n int64) ([]byte, error) {
	if off >= w.at && off+n <= w.at+int64(len(w.buf)) {
		return w.buf[off-w.at:][:n], nil
	}
	size := min(max(n, w.ahead), max(n, w.end-off))
	if int64(cap(w.buf)) < size {
		w.buf = make([]byte, size)
	}
	w.buf, w.at = w.buf[:size], off
	if err := readFull(w.r, w.buf, off); err != nil {
		w.buf = w.buf[:0]
		return nil, err
	}
	return w.buf[:n], nil
}
