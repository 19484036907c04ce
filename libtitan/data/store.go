package data

import (
	"encoding/binary"
	"fmt"
	"os"
)

// store is a stream that holds its tokens, two or four bytes each, in memory or in a temporary file without a
// name. It is filled by append, then finish; only then may it be read.
type store struct {
	width    int      // bytes a token
	chunks   [][]byte // of chunkBytes each, the last one shorter; none once there is a file
	tokens   int64
	file     *os.File // nil while memory suffices
	maxBytes int64
}

const chunkBytes = 1 << 20

// newStore makes a store for ids below vocabSize. Both widths leave a bit for the complement.
func newStore(vocabSize int, maxBytes int64) *store {
	width := 4
	if vocabSize <= 1<<15 {
		width = 2
	}
	return &store{width: width, maxBytes: maxBytes}
}

func (s *store) size() int64 { return s.tokens }

func (s *store) close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// append adds tokens; ^id is one that must not be learned.
func (s *store) append(ids []int32) error {
	for _, id := range ids {
		last := len(s.chunks) - 1
		if last < 0 || len(s.chunks[last]) == chunkBytes {
			if err := s.grow(); err != nil {
				return err
			}
			last = len(s.chunks) - 1
		}
		if s.width == 2 {
			s.chunks[last] = binary.LittleEndian.AppendUint16(s.chunks[last], uint16(id))
		} else {
			s.chunks[last] = binary.LittleEndian.AppendUint32(s.chunks[last], uint32(id))
		}
	}
	s.tokens += int64(len(ids))
	return nil
}

// grow makes room for another chunk, by moving all to the file where memory is used up.
func (s *store) grow() error {
	if s.file != nil || int64(len(s.chunks)+1)*chunkBytes > s.maxBytes {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.chunks = append(s.chunks, make([]byte, 0, chunkBytes))
	return nil
}

// spill writes the chunks to the file and drops them.
func (s *store) spill() error {
	if s.file == nil {
		file, err := os.CreateTemp("", "titan-tokens-")
		if err != nil {
			return fmt.Errorf("data: %w", err)
		}
		if err := os.Remove(file.Name()); err != nil { // so that nothing is left however the run ends
			return fmt.Errorf("data: %w", err)
		}
		s.file = file
	}
	for _, chunk := range s.chunks {
		if _, err := s.file.Write(chunk); err != nil {
			return fmt.Errorf("data: temporary file for tokens: %w", err)
		}
	}
	s.chunks = nil
	return nil
}

// finish ends the filling.
func (s *store) finish() error {
	if s.file == nil {
		return nil
	}
	return s.spill()
}

func (s *store) read(dst []int32, offset int64) error {
	buf := make([]byte, len(dst)*s.width)
	at := offset * int64(s.width)
	if s.file != nil {
		if _, err := s.file.ReadAt(buf, at); err != nil {
			return fmt.Errorf("data: temporary file: %w", err)
		}
	} else {
		for done := 0; done < len(buf); {
			chunk := s.chunks[(at+int64(done))/chunkBytes]
			done += copy(buf[done:], chunk[(at+int64(done))%chunkBytes:])
		}
	}
	for i := range dst {
		if s.width == 2 {
			dst[i] = int32(int16(binary.LittleEndian.Uint16(buf[2*i:])))
		} else {
			dst[i] = int32(binary.LittleEndian.Uint32(buf[4*i:]))
		}
	}
	return nil
}
