package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

const (
	maxZipEntries = 1 << 20
	tailBytes     = 1024 // holds the directory of an item with one storage
)

// zipFile is the directory of a torch.save zip. Records are read raw: PyTorch may leave their CRCs at 0.
type zipFile struct {
	r       io.ReaderAt
	size    int64
	records map[string]zipRecord // by name without the top folder
}

// openZip reads the central directory, where alone the sizes stand.
func openZip(r io.ReaderAt, size int64) (*zipFile, error) {
	tail := make([]byte, min(size, tailBytes))
	if err := readFull(r, tail, size-int64(len(tail))); err != nil {
		return nil, err
	}
	at, length, count, err := findDirectory(r, tail, size)
	if err != nil {
		return nil, err
	}
	dir := make([]byte, length)
	if from := at - (size - int64(len(tail))); from >= 0 {
		copy(dir, tail[from:])
	} else if err := readFull(r, dir, at); err != nil {
		return nil, err
	}
	z := &zipFile{r: r, size: size, records: make(map[string]zipRecord, min(count, 1024))}
	for i := range count {
		if dir, err = z.entry(dir, at+length-int64(len(dir))); err != nil {
			return nil, fmt.Errorf("zip entry %d: %w", i, err)
		}
	}
	return z, nil
}

var errNoZip = errors.New("not a torch.save zip: no end record")

// findDirectory finds the central directory's offset, size and number of entries from the end records in tail.
func findDirectory(r io.ReaderAt, tail []byte, size int64) (at, length int64, count int, err error) {
	i := bytes.LastIndex(tail, []byte("PK\x05\x06"))
	if i < 0 || len(tail)-i < 22 {
		return 0, 0, 0, errNoZip
	}
	end := tail[i:]
	n := uint64(binary.LittleEndian.Uint16(end[10:]))
	bytes, offset := uint64(binary.LittleEndian.Uint32(end[12:])), uint64(binary.LittleEndian.Uint32(end[16:]))
	if i >= 20 && string(tail[i-20:i-16]) == "PK\x06\x07" {
		var rec [56]byte
		if err := readFull(r, rec[:], int64(binary.LittleEndian.Uint64(tail[i-12:]))); err != nil {
			return 0, 0, 0, err
		}
		if string(rec[:4]) != "PK\x06\x06" {
			return 0, 0, 0, errNoZip
		}
		n, bytes, offset = binary.LittleEndian.Uint64(rec[32:]), binary.LittleEndian.Uint64(rec[40:]), binary.LittleEndian.Uint64(rec[48:])
	}
	if offset > uint64(size) || bytes > uint64(size)-offset || n > maxZipEntries || n*46 > bytes {
		return 0, 0, 0, fmt.Errorf("zip directory of %d entries in %d bytes at %d does not fit an item of %d bytes", n, bytes, offset, size)
	}
	return int64(offset), int64(bytes), int(n), nil
}

// entry files the record at the start of dir, which is at an offset of the item, and returns the rest.
func (z *zipFile) entry(dir []byte, at int64) ([]byte, error) {
	if len(dir) < 46 || string(dir[:4]) != "PK\x01\x02" {
		return nil, errors.New("damaged")
	}
	u16 := func(i int) int { return int(binary.LittleEndian.Uint16(dir[i:])) }
	u32 := func(i int) uint64 { return uint64(binary.LittleEndian.Uint32(dir[i:])) }
	nameEnd := 46 + u16(28)
	end := nameEnd + u16(30) + u16(32)
	if end > len(dir) {
		return nil, errors.New("cut short")
	}
	size, offset := u32(24), u32(42)
	size, offset = zip64Extra(dir[nameEnd:nameEnd+u16(30)], size, offset)
	_, name, _ := strings.Cut(string(dir[46:nameEnd]), "/")
	switch {
	case u16(10) != 0:
		return nil, fmt.Errorf("record %.100q is compressed (method %d): only stored records are read", name, u16(10))
	case offset > uint64(z.size) || size > uint64(z.size)-offset:
		return nil, fmt.Errorf("record %.100q of %d bytes at %d reaches beyond the item's %d bytes", name, size, offset, z.size)
	}
	z.records[name] = zipRecord{name: name, entry: at, offset: int64(offset), size: int64(size), crc: uint32(u32(16))}
	return dir[end:], nil
}

// zip64Extra takes the wide forms of the fields that are full.
func zip64Extra(extra []byte, size, offset uint64) (uint64, uint64) {
	for len(extra) >= 4 {
		id, n := binary.LittleEndian.Uint16(extra), int(binary.LittleEndian.Uint16(extra[2:]))
		if n > len(extra)-4 {
			break
		}
		if id == 1 {
			wide := extra[4 : 4+n]
			if size == zip64Limit && len(wide) >= 16 {
				size, wide = binary.LittleEndian.Uint64(wide), wide[16:] // both sizes, equal when stored
			}
			if offset == zip64Limit && len(wide) >= 8 {
				offset = binary.LittleEndian.Uint64(wide)
			}
			break
		}
		extra = extra[4+n:]
	}
	return size, offset
}

// start is where a record's data begin, which only its local header tells.
func (z *zipFile) start(r zipRecord) (int64, error) {
	var h [localHeaderBytes]byte
	if err := readFull(z.r, h[:], r.offset); err != nil {
		return 0, err
	}
	if string(h[:4]) != "PK\x03\x04" {
		return 0, fmt.Errorf("zip record %.100q has no local header", r.name)
	}
	at := r.offset + localHeaderBytes + int64(binary.LittleEndian.Uint16(h[26:])) + int64(binary.LittleEndian.Uint16(h[28:]))
	if r.size > z.size-at {
		return 0, fmt.Errorf("zip record %.100q reaches beyond its item", r.name)
	}
	return at, nil
}

// read returns a record's bytes as a string, refusing more than limit.
func (z *zipFile) read(name string, limit int64) (string, error) {
	r, ok := z.records[name]
	if !ok {
		return "", fmt.Errorf("no record %q in the zip", name)
	}
	if r.size > limit {
		return "", fmt.Errorf("record %q of %d bytes, more than the %d allowed", name, r.size, limit)
	}
	at, err := z.start(r)
	if err != nil {
		return "", err
	}
	return readText(z.r, at, r.size)
}

// readText reads n bytes at off as a string. The caller has made sure that they are there.
func readText(r io.ReaderAt, off, n int64) (string, error) {
	var b strings.Builder
	b.Grow(int(n))
	if _, err := io.Copy(&b, io.NewSectionReader(r, off, n)); err != nil {
		return "", err
	}
	if int64(b.Len()) != n {
		return "", io.ErrUnexpectedEOF
	}
	return b.String(), nil
}

// readFull fills b from off. A short read says so, even at the end of the file.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	if off < 0 {
		return io.ErrUnexpectedEOF
	}
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
