package snapshot

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"titan/libtitan/exit"
)

// ReadFile reads a snapshot or a trace from a file.
func ReadFile(path string) (*Snapshot, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// Read reads one from a stream to its end.
func Read(r io.Reader) (*Snapshot, error) {
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, err
	}
	return Parse(data)
}

// maxUnzipped bounds what a gzipped file may become: 1 KiB a byte is what gzip can do, and no snapshot does.
const maxUnzipped = 64

// Parse tells the format by the first bytes, and reads it. An error is one of bad input.
func Parse(data []byte) (*Snapshot, error) {
	s, err := parse(data)
	if err != nil {
		return nil, exit.Input.Errorf("snapshot: %w", err)
	}
	return s, nil
}

func parse(data []byte) (*Snapshot, error) {
	switch first := bytes.TrimLeft(data[:min(len(data), 64)], " \t\r\n"); {
	case len(data) == 0:
		return nil, errors.New("the file is empty")
	case data[0] == 0x80:
		return readPickle(unsafe.String(&data[0], len(data))) // data is not written to any more
	case bytes.HasPrefix(data, []byte{0x1f, 0x8b}):
		return unzip(data)
	case bytes.HasPrefix(data, []byte{0xff, 0xff, 0xff, 0xff}):
		return readArrow(data)
	case len(first) > 0 && (first[0] == '{' || first[0] == '['):
		return readJSON(unsafe.String(&data[0], len(data)))
	}
	return nil, errors.New("neither a pickle (of protocol 2 or later), JSON, gzip nor an Arrow stream")
}

func unzip(data []byte) (*Snapshot, error) {
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	limit := maxUnzipped * int64(len(data))
	plain, err := io.ReadAll(io.LimitReader(z, limit+1))
	switch {
	case err != nil:
		return nil, err
	case int64(len(plain)) > limit:
		return nil, fmt.Errorf("the gzipped file grows more than %d times: unpack it first", maxUnzipped)
	case bytes.HasPrefix(plain, []byte{0x1f, 0x8b}):
		return nil, errors.New("gzip within gzip")
	}
	return parse(plain)
}
