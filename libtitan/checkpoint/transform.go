package checkpoint

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/zstd"
)

const zstdTransform = "stream.zstd/1"

const zipOverhead = 64 << 10 // what a tensor's item may hold beside its data

// decoded undoes an item's stream transforms, in order, as the bytes come. Close it.
func decoded(raw io.Reader, descriptors []string) (io.ReadCloser, error) {
	d := decoder{Reader: raw}
	for _, descriptor := range descriptors {
		name, version, _ := strings.Cut(descriptor, "/")
		major, _, _ := strings.Cut(version, ".")
		if name != "stream.zstd" || major != "1" {
			d.Close()
			return nil, fmt.Errorf("stream transform %.100q is not known (stream.zstd/1 is)", descriptor)
		}
		z, err := zstd.NewReader(d.Reader, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			d.Close()
			return nil, err
		}
		d.Reader, d.open = z, append(d.open, z)
	}
	return &d, nil
}

// decoder is a chain of zstd readers.
type decoder struct {
	io.Reader
	open []*zstd.Decoder
}

func (d *decoder) Close() error {
	for _, z := range d.open {
		z.Close()
	}
	return nil
}

// untransform decodes an item whole; the result may be limit bytes long.
func untransform(raw io.Reader, descriptors []string, limit int64) ([]byte, error) {
	d, err := decoded(raw, descriptors)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	b, err := io.ReadAll(io.LimitReader(d, limit+1))
	if err == nil && int64(len(b)) > limit {
		err = fmt.Errorf("more than the %d bytes that it may expand to", limit)
	}
	return b, err
}

// expanded keeps recently expanded items, since a region at a time is read of them.
type expanded struct {
	mu    sync.Mutex
	items []expandedItem // oldest first
}

type expandedItem struct {
	at   *location
	data []byte
}

const expandedBytes = 64 << 20

func (c *expanded) get(at *location) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range c.items {
		if it.at == at {
			return it.data
		}
	}
	return nil
}

func (c *expanded) put(at *location, data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := len(data)
	for i := len(c.items) - 1; i >= 0; i-- {
		if total += len(c.items[i].data); total > expandedBytes {
			c.items = append([]expandedItem(nil), c.items[i+1:]...)
			break
		}
	}
	c.items = append(c.items, expandedItem{at, data})
}

// openItem gives an item's bytes and their number; limit bounds what a coded item may expand to. One that may be large
// is decoded as it is read.
func (r *Reader) openItem(at *location, limit int64) (io.ReaderAt, int64, error) {
	if len(at.transforms) == 0 || limit <= streamedBytes {
		return r.openWhole(at, limit)
	}
	f, err := r.folder.file(at.path)
	if err != nil {
		return nil, 0, err
	}
	decode := func() (io.ReadCloser, error) {
		return decoded(io.NewSectionReader(f, at.offset, at.length), at.transforms)
	}
	s, err := r.streams.get(at, decode, limit)
	if err != nil {
		return nil, 0, err
	}
	return s, s.size, nil
}

// openWhole is openItem where a coded item is decoded at once.
func (r *Reader) openWhole(at *location, limit int64) (io.ReaderAt, int64, error) {
	f, err := r.folder.file(at.path)
	if err != nil {
		return nil, 0, err
	}
	section := io.NewSectionReader(f, at.offset, at.length)
	if len(at.transforms) == 0 {
		return section, at.length, nil
	}
	data := r.expanded.get(at)
	if data == nil {
		if data, err = untransform(section, at.transforms, limit); err != nil {
			return nil, 0, err
		}
		r.expanded.put(at, data)
	}
	return bytes.NewReader(data), int64(len(data)), nil
}
