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

// untransform undoes an item's stream transforms, in order; the result may be limit bytes long.
func untransform(raw io.Reader, descriptors []string, limit int64) ([]byte, error) {
	for _, d := range descriptors {
		name, version, _ := strings.Cut(d, "/")
		major, _, _ := strings.Cut(version, ".")
		if name != "stream.zstd" || major != "1" {
			return nil, fmt.Errorf("stream transform %.100q is not known (stream.zstd/1 is)", d)
		}
		z, err := zstd.NewReader(raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(128<<20))
		if err != nil {
			return nil, err
		}
		defer z.Close()
		raw = z
	}
	b, err := io.ReadAll(io.LimitReader(raw, limit+1))
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

const expandedBytes = 128 << 20

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

// openItem gives an item's bytes and their number; limit bounds what a transformed item may expand to.
func (r *Reader) openItem(at *location, limit int64) (io.ReaderAt, int64, error) {
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
