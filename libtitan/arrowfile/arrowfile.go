// Package arrowfile reads Arrow and Parquet files that nobody vouches for with the Arrow module, which believes what they say:
// [NewReader] lets no length past that the file does not hold, [Allocator] nothing that is out of proportion to it, and within
// [Guard] a panic is an error.
package arrowfile

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/apache/arrow/go/v17/arrow/memory"
)

// NewReader reads an Arrow IPC stream of size bytes. It ends with its end mark, or where a message does.
func NewReader(r io.Reader, size int64) (*ipc.Reader, error) {
	return ipc.NewReaderFromMessageReader(&messageReader{r: r, left: size}, ipc.WithAllocator(Allocator(size)))
}

// Guard runs a parser of the Arrow module, which answers some broken files with a panic, or with what it met in one.
func Guard(parse func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = broken(r)
		}
	}()
	if err = parse(); err != nil && strings.Contains(err.Error(), "runtime error") {
		err = broken(err)
	}
	return err
}

// broken says what a panic was about. Lengths that do not fit their file are met as slices out of bounds.
func broken(met any) error {
	text := fmt.Sprint(met)
	if strings.Contains(text, "runtime error") {
		text = "its lengths and offsets do not fit together"
	}
	return fmt.Errorf("the file is broken: %s", text)
}

// messageReader reads the messages of an IPC stream, and believes no length that the file does not hold.
type messageReader struct {
	r    io.Reader
	left int64 // bytes
}

func (m *messageReader) Retain()  {}
func (m *messageReader) Release() {}

// Message gives the next message: a marker ffffffff, the length of the metadata, the metadata, the body
// (Arrow columnar format, "Encapsulated message format"). io.EOF is the end.
func (m *messageReader) Message() (*ipc.Message, error) {
	if m.left == 0 {
		return nil, io.EOF
	}
	prefix, err := m.take(8)
	if err != nil {
		return nil, err
	}
	if string(prefix[:6]) == "ARROW1" {
		return nil, errors.New("an Arrow file of random access, not a stream: write it with pyarrow.ipc.new_stream")
	}
	if binary.LittleEndian.Uint32(prefix) != 0xffffffff {
		return nil, errors.New("not an Arrow IPC stream")
	}
	metaBytes := int64(binary.LittleEndian.Uint32(prefix[4:]))
	if metaBytes == 0 {
		return nil, io.EOF
	}
	meta, err := m.take(metaBytes)
	if err != nil {
		return nil, err
	}
	if err := checkMessage(meta); err != nil {
		return nil, err
	}
	metaBuffer := memory.NewBufferBytes(meta)
	body, err := m.take(ipc.NewMessage(metaBuffer, memory.NewBufferBytes(nil)).BodyLen())
	if err != nil {
		return nil, err
	}
	return ipc.NewMessage(metaBuffer, memory.NewBufferBytes(body)), nil
}

// take reads n bytes, provided that they are there.
func (m *messageReader) take(n int64) ([]byte, error) {
	if n < 0 || n > m.left {
		return nil, fmt.Errorf("truncated: %d bytes of a message expected, %d left", n, m.left)
	}
	m.left -= n
	b := make([]byte, n)
	_, err := io.ReadFull(m.r, b)
	return b, err
}

// Allocator is what a file of size bytes is parsed with. It refuses, by a panic that Guard turns into an error, what a forged
// length asks for: there is no other way to refuse. Columns of text compress by 3 to 10, of masks by 100.
func Allocator(size int64) memory.Allocator {
	return &bounded{maxBytes: int(max(16<<20, min(size, 1<<40)*256))}
}

type bounded struct {
	memory.GoAllocator
	maxBytes int
}

func (b *bounded) Allocate(size int) []byte {
	b.check(size)
	return b.GoAllocator.Allocate(size)
}

func (b *bounded) Reallocate(size int, old []byte) []byte {
	b.check(size)
	return b.GoAllocator.Reallocate(size, old)
}

func (b *bounded) check(size int) {
	if size < 0 || size > b.maxBytes {
		panic(fmt.Errorf("a buffer of %d bytes is out of proportion to the file", size))
	}
}
