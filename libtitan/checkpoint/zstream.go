package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
)

const (
	streamedBytes = 16 << 20 // items that may expand to more are read as streams
	edgeBytes     = 64 << 10 // kept of either end of a stream: what is not tensor data
	recentBytes   = 8 << 20  // kept before a stream's place, for readers that are a few blocks apart
	openStreams   = 4
)

// streamedItem reads a large coded item by ranges. It decodes from the start, keeps what it passed lately, and starts
// anew for what lies further back: whoever reads in order decodes once.
type streamedItem struct {
	once   sync.Once // opens it
	err    error
	mu     sync.Mutex
	decode func() (io.ReadCloser, error)
	size   int64
	head   []byte // the first edgeBytes
	tail   []byte // the last
	src    io.ReadCloser
	at     int64  // where src stands
	recent []byte // the bytes before at
}

// open decodes once, to know the size; limit bounds it.
func (s *streamedItem) open(limit int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.restart(); err != nil {
		return err
	}
	defer s.stop()
	for {
		err := s.pull()
		if s.head == nil && (err != nil || s.at >= edgeBytes) {
			s.head = append([]byte{}, s.recent[:min(len(s.recent), edgeBytes)]...)
		}
		if s.at > limit {
			return fmt.Errorf("more than the %d bytes that it may expand to", limit)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
	}
	s.size = s.at
	s.tail = append([]byte{}, s.recent[max(0, len(s.recent)-edgeBytes):]...)
	return nil
}

func (s *streamedItem) restart() (err error) {
	s.stop()
	s.at, s.recent = 0, make([]byte, 0, 2*recentBytes)
	s.src, err = s.decode()
	return err
}

// stop lets the decoder go.
func (s *streamedItem) stop() {
	if s.src != nil {
		s.src.Close()
		s.src, s.recent = nil, nil
	}
}

// pull decodes some more, to the end of recent.
func (s *streamedItem) pull() error {
	if len(s.recent) == cap(s.recent) {
		s.recent = s.recent[:copy(s.recent, s.recent[len(s.recent)-recentBytes:])]
	}
	room := s.recent[len(s.recent):min(cap(s.recent), len(s.recent)+maxBlock)]
	n, err := io.ReadFull(s.src, room)
	s.recent = s.recent[:len(s.recent)+n]
	s.at += int64(n)
	if errors.Is(err, io.ErrUnexpectedEOF) && n > 0 {
		err = nil // the next call tells whether that was the end
	}
	return err
}

// ReadAt is io.ReaderAt's.
func (s *streamedItem) ReadAt(p []byte, off int64) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for done < len(p) {
		n, err := s.some(p[done:min(len(p), done+maxBlock)], off+int64(done))
		done += n
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

// some reads at most a block.
func (s *streamedItem) some(p []byte, off int64) (int, error) {
	if off >= s.size {
		return 0, io.EOF
	}
	if off+int64(len(p)) <= int64(len(s.head)) {
		return copy(p, s.head[off:]), nil
	}
	if back := off - (s.size - int64(len(s.tail))); back >= 0 {
		return copy(p, s.tail[back:]), nil
	}
	if s.src == nil || off < s.at-int64(len(s.recent)) {
		if err := s.restart(); err != nil {
			return 0, err
		}
	}
	end := min(off+int64(len(p)), s.size)
	for s.at < end {
		if err := s.pull(); err != nil {
			return 0, err
		}
	}
	return copy(p, s.recent[off-(s.at-int64(len(s.recent))):]), nil
}

// streams are the large coded items that were opened; the last few used have a decoder.
type streams struct {
	mu   sync.Mutex
	all  map[*location]*streamedItem
	live []*streamedItem // the last used at the end
}

// get finds an item's stream, or makes it.
func (c *streams) get(at *location, decode func() (io.ReadCloser, error), limit int64) (*streamedItem, error) {
	s := c.use(at, decode)
	s.once.Do(func() { s.err = s.open(limit) })
	return s, s.err
}

// use puts an item at the end of those in use, and lets the decoder of the first go.
func (c *streams) use(at *location, decode func() (io.ReadCloser, error)) *streamedItem {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.all[at]
	if s == nil {
		if c.all == nil {
			c.all = map[*location]*streamedItem{}
		}
		s = &streamedItem{decode: decode}
		c.all[at] = s
	}
	c.live = append(slices.DeleteFunc(c.live, func(x *streamedItem) bool { return x == s }), s)
	if len(c.live) > openStreams {
		old := c.live[0]
		c.live = slices.Delete(c.live, 0, 1)
		old.mu.Lock()
		old.stop()
		old.mu.Unlock()
	}
	return s
}
