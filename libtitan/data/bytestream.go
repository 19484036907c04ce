package data

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sort"

	"titan/libtitan/exit"
	"titan/libtitan/tokenizer"
)

// byteStream is the stream of text files under the byte tokenizer. It holds only where each document starts;
// bytes are read when a row needs them.
type byteStream struct {
	files    []source
	starts   []int64 // token at which each document starts, then the total
	bos, eos []int32 // of one token, or empty
}

func newByteStream(files []source, tok tokenizer.Tokenizer) *byteStream {
	b := &byteStream{files: files, starts: make([]int64, 1, len(files)+1)}
	b.bos, b.eos = specials(tok)
	total := int64(0)
	for _, f := range files {
		total += int64(len(b.bos)) + f.size + int64(len(b.eos))
		b.starts = append(b.starts, total)
	}
	return b
}

// specials are what goes before and after a document.
func specials(tok tokenizer.Tokenizer) (before, after []int32) {
	if id, ok := tok.BOS(); ok {
		before = []int32{id}
	}
	if id, ok := tok.EOS(); ok {
		after = []int32{id}
	}
	return before, after
}

func (b *byteStream) size() int64 { return b.starts[len(b.files)] }

func (b *byteStream) close() error { return nil }

func (b *byteStream) read(dst []int32, offset int64) error {
	doc := sort.Search(len(b.files), func(i int) bool { return b.starts[i+1] > offset })
	for ; len(dst) > 0; doc++ {
		n, err := b.readDocument(dst, doc, offset-b.starts[doc])
		if err != nil {
			return err
		}
		dst, offset = dst[n:], offset+int64(n)
	}
	return nil
}

// readDocument fills dst with tokens of one document from its token at on, as many as it has.
func (b *byteStream) readDocument(dst []int32, doc int, at int64) (n int, err error) {
	f := b.files[doc]
	if at < int64(len(b.bos)) {
		n = copy(dst, b.bos[at:])
	}
	at += int64(n) - int64(len(b.bos)) // now in bytes of the file
	if take := min(int64(len(dst)-n), f.size-at); take > 0 {
		if err := readBytes(dst[n:n+int(take)], f, at); err != nil {
			return 0, err
		}
		n, at = n+int(take), at+take
	}
	if at >= f.size {
		n += copy(dst[n:], b.eos)
	}
	return n, nil
}

// readBytes fills dst with the bytes of f from offset on, provided that f is still what it was.
func readBytes(dst []int32, f source, offset int64) error {
	file, err := os.Open(f.path)
	if err != nil {
		return exit.Input.Errorf("data: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("data: %w", err)
	}
	if info.Size() != f.size || !info.ModTime().Equal(f.modified) {
		return changed(f)
	}
	buf := make([]byte, len(dst))
	if _, err := file.ReadAt(buf, offset); errors.Is(err, io.EOF) {
		return changed(f)
	} else if err != nil {
		return fmt.Errorf("data: %s: %w", f.path, err)
	}
	for i, c := range buf {
		dst[i] = int32(c)
	}
	return nil
}

func changed(f source) error {
	return exit.Input.Errorf("data: %s: changed since the run began", f.path)
}
