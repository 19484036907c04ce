package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/big"

	"titan/libtitan/pickle"
)

// A file of before PyTorch 1.6 is five pickles in a row: a magic number, the protocol 1001, a dict about the machine,
// the value, the keys of its storages. Then comes each storage: its number of elements, 8 bytes, and the elements.

// legacyMagic is how such a file begins: the number 0x1950a86a20f9469cfc6c, by protocol 2.
var legacyMagic = []byte("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19")

const legacyProtocol = 1001

// legacyReader reads one pickle after the other.
type legacyReader struct {
	r        io.ReaderAt
	size, at int64
	storages map[string]*storage
}

// readLegacy reads the value; its tensors' data are located, not read.
func readLegacy(r io.ReaderAt, size int64) (any, error) {
	l := legacyReader{r: r, size: size, storages: map[string]*storage{}}
	var parts [5]any
	for i, part := range []string{"magic number", "protocol", "machine", "value", "keys"} {
		var err error
		if parts[i], err = l.next(); err != nil {
			return nil, fmt.Errorf("legacy file: %s: %w", part, err)
		}
	}
	if _, ok := parts[0].(*big.Int); !ok || parts[1] != int64(legacyProtocol) {
		return nil, fmt.Errorf("legacy file: protocol %v where %d is known", parts[1], legacyProtocol)
	}
	if d, ok := parts[2].(*pickle.Dict); ok {
		if little, ok := d.Get("little_endian"); ok && little != true {
			return nil, errors.New("legacy file: only little-endian data is read")
		}
	}
	keys, ok := parts[4].(*pickle.List)
	if !ok {
		return nil, errors.New("legacy file: the keys are no list")
	}
	return parts[3], l.locate(keys.Items)
}

// next reads the pickle at l.at. How long it is shows at its end alone, so more and more is read.
func (l *legacyReader) next() (any, error) {
	for window := int64(1 << 16); ; window *= 4 {
		n := min(window, l.size-l.at, maxPickle)
		data, err := readText(l.r, l.at, n)
		if err != nil {
			return nil, err
		}
		p, err := pickle.Check(data, &itemOps)
		if err != nil && n == window {
			continue
		}
		if err != nil {
			return nil, err
		}
		l.at += int64(p.Len())
		d := itemDecoder{storages: l.storages, locate: func(s *storage) error { s.at = -1; return nil }}
		return p.Run(pickle.Options{Globals: itemGlobals, Persistent: d.persistent})
	}
}

// locate finds each storage's data in the rest of the file.
func (l *legacyReader) locate(keys []any) error {
	for _, k := range keys {
		key, _ := k.(string)
		s := l.storages[key]
		if s == nil || s.at >= 0 {
			return fmt.Errorf("legacy file: storage %.100q is of no tensor, or stands twice", key)
		}
		var count [8]byte
		if err := readFull(l.r, count[:], l.at); err != nil {
			return fmt.Errorf("legacy file: storage %.100q: %w", key, err)
		}
		elem := int64(1)
		if !s.kind.untyped {
			elem = int64(s.kind.dtype.Size())
		}
		if n := binary.LittleEndian.Uint64(count[:]); n != uint64(s.bytes/elem) {
			return fmt.Errorf("legacy file: storage %.100q holds %d elements where its tensor says %d", key, n, s.bytes/elem)
		}
		if s.at = l.at + 8; s.bytes > l.size-s.at {
			return fmt.Errorf("legacy file: storage %.100q of %d bytes is cut: the file has %d more", key, s.bytes, l.size-s.at)
		}
		l.at = s.at + s.bytes
	}
	for key, s := range l.storages {
		if s.at < 0 {
			return fmt.Errorf("legacy file: storage %.100q is missing", key)
		}
	}
	return nil
}
