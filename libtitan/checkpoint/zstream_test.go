package checkpoint

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func openStream(t require.TestingT, data []byte, decodes *int) *streamedItem {
	s := &streamedItem{decode: func() (io.ReadCloser, error) { *decodes++; return io.NopCloser(bytes.NewReader(data)), nil }}
	require.NoError(t, s.open(int64(len(data))))
	require.Equal(t, int64(len(data)), s.size)
	return s
}

func TestStreamedItemsReadAnyRange(t *testing.T) {
	all := pattern(3*recentBytes+12345, 3)
	rapid.Check(t, func(t *rapid.T) {
		data := all[:rapid.SampledFrom([]int{0, 1, edgeBytes, edgeBytes + 1, maxBlock, recentBytes, 2 * recentBytes, len(all)}).Draw(t, "size")]
		decodes := 0
		s := openStream(t, data, &decodes)
		for range 5 {
			off := rapid.IntRange(0, len(data)).Draw(t, "off")
			p := make([]byte, rapid.SampledFrom([]int{0, 1, 1000, maxBlock, 3 * maxBlock}).Draw(t, "n"))
			n, err := s.ReadAt(p, int64(off))
			require.Equal(t, min(len(p), len(data)-off), n)
			require.True(t, bytes.Equal(data[off:off+n], p[:n]))
			if n < len(p) {
				require.Equal(t, io.EOF, err)
			}
		}
		require.LessOrEqual(t, cap(s.recent), 2*recentBytes)
	})
}

// Two readers a few blocks apart cost one pass beside the first.
func TestStreamedItemsDecodeOnceInOrder(t *testing.T) {
	decodes := 0
	s := openStream(t, pattern(4*recentBytes, 1), &decodes)
	for _, block := range []int64{1, 0, 3, 2, 5, 4, 7, 6, 31, 30} {
		_, err := s.ReadAt(make([]byte, maxBlock), block*maxBlock)
		require.NoError(t, err)
	}
	require.Equal(t, 2, decodes)
}

func TestStreamedItemsAreBounded(t *testing.T) {
	s := &streamedItem{decode: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(make([]byte, 2000))), nil }}
	require.ErrorContains(t, s.open(1999), "more than the 1999 bytes that it may expand to")
	broken := errors.New("broken")
	s = &streamedItem{decode: func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(bytes.NewReader(make([]byte, 10)), errorReader{broken})), nil
	}}
	require.ErrorIs(t, s.open(1<<20), broken)
}

type errorReader struct{ err error }

func (r errorReader) Read([]byte) (int, error) { return 0, r.err }
