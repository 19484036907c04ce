package arrowfile

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/stretchr/testify/require"
)

func TestGuard(t *testing.T) {
	require.NoError(t, Guard(func() error { return nil }))
	require.EqualError(t, Guard(func() error { return errors.New("no such column") }), "no such column")
	var none []int
	require.EqualError(t, Guard(func() error { none[len(none)]++; return nil }), "the file is broken: its lengths and offsets do not fit together")
	for _, size := range []int{-1, 1 << 40} {
		err := Guard(func() error { Allocator(1000).Allocate(size); return nil })
		require.ErrorContains(t, err, "out of proportion to the file")
	}
	require.Len(t, Allocator(1000).Reallocate(1<<20, nil), 1<<20)
}

// A stream may end without its mark; no length that it gives is believed.
func TestNewReader(t *testing.T) {
	var b bytes.Buffer
	schema := arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, nil)
	require.NoError(t, ipc.NewWriter(&b, ipc.WithSchema(schema)).Close())
	open := func(data []byte) error {
		return Guard(func() error {
			r, err := NewReader(bytes.NewReader(data), int64(len(data)))
			if err == nil {
				require.True(t, schema.Equal(r.Schema()))
				require.False(t, r.Next())
				err = r.Err()
			}
			return err
		})
	}
	require.NoError(t, open(b.Bytes()))
	require.NoError(t, open(b.Bytes()[:b.Len()-8]))
	require.ErrorContains(t, open(b.Bytes()[:b.Len()-9]), "truncated")
	forged := bytes.Clone(b.Bytes())
	binary.LittleEndian.PutUint32(forged[4:], 1<<31-1)
	require.ErrorContains(t, open(forged), "truncated: 2147483647 bytes of a message expected")
}
