package train

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTensorBoard(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "a")
	now := time.Unix(1000, 500_000_000)
	tb, err := NewTensorBoard(dir, func() time.Time { return now })
	require.NoError(t, err)
	now = now.Add(time.Second)
	require.NoError(t, tb.Scalar("loss", 1, 2.5))
	require.NoError(t, tb.Scalar("grad_norm/"+string(make([]byte, 200)), 300, -1))
	require.NoError(t, tb.Close())

	files, err := filepath.Glob(filepath.Join(dir, "events.out.tfevents.0000001000.*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	b, err := os.ReadFile(files[0])
	require.NoError(t, err)
	var events []fields
	var bytes []string
	for len(b) > 0 {
		length := binary.LittleEndian.Uint64(b)
		require.Equal(t, masked(b[:8]), binary.LittleEndian.Uint32(b[8:]))
		record := b[12 : 12+length]
		require.Equal(t, masked(record), binary.LittleEndian.Uint32(b[12+length:]))
		events = append(events, decode(t, record))
		bytes = append(bytes, hex.EncodeToString(record))
		b = b[16+length:]
	}
	require.Len(t, events, 3)
	// Bytes of the protobufjs library (npm 8.8.1) from TensorFlow's event.proto.
	require.Equal(t, []string{"090000000000448f401a0d627261696e2e4576656e743a32", "0900000000004c8f4010012a0d0a0b0a046c6f73731500002040"}, bytes[:2])
	require.Equal(t, fields{1: math.Float64bits(1000.5), 3: "brain.Event:2"}, events[0])
	for i, want := range []fields{{1: "loss", 2: uint64(math.Float32bits(2.5))}, {1: "grad_norm/" + string(make([]byte, 200)), 2: uint64(math.Float32bits(-1))}} {
		e := events[i+1]
		require.Equal(t, math.Float64bits(1001.5), e[1])
		require.Equal(t, []uint64{1, 300}[i], e[2])
		summary := decode(t, []byte(e[5].(string)))
		require.Equal(t, want, decode(t, []byte(summary[1].(string))))
	}
}

// fields are those of a protocol buffer message by number: numbers as uint64 bits, bytes as string.
type fields map[uint64]any

func decode(t *testing.T, b []byte) fields {
	f := fields{}
	for len(b) > 0 {
		key, n := binary.Uvarint(b)
		require.Positive(t, n)
		b = b[n:]
		switch key & 7 {
		case 0:
			v, n := binary.Uvarint(b)
			require.Positive(t, n)
			f[key>>3], b = v, b[n:]
		case 1:
			f[key>>3], b = binary.LittleEndian.Uint64(b), b[8:]
		case 2:
			length, n := binary.Uvarint(b)
			require.Positive(t, n)
			b = b[n:]
			f[key>>3], b = string(b[:length]), b[length:]
		case 5:
			f[key>>3], b = uint64(binary.LittleEndian.Uint32(b)), b[4:]
		default:
			require.Fail(t, "wire type", key&7)
		}
	}
	return f
}

// masked is the checksum of TFRecord, bit by bit from the polynomial (RFC 3720 B.4), held to a known value in
// TestMaskedChecksum.
func masked(b []byte) uint32 {
	crc := crc32c(b)
	return crc>>15 + crc<<17 + 0xa282ead8
}

func crc32c(b []byte) uint32 {
	crc := ^uint32(0)
	for _, c := range b {
		crc ^= uint32(c)
		for range 8 {
			crc = crc>>1 ^ 0x82f63b78*(crc&1)
		}
	}
	return ^crc
}

func TestMaskedChecksum(t *testing.T) {
	require.Equal(t, uint32(0xe3069283), crc32c([]byte("123456789")))
	require.Equal(t, masked([]byte("123456789")), maskedCRC([]byte("123456789")))
}

func TestTensorBoardInAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	_, err := NewTensorBoard(path, time.Now)
	require.ErrorContains(t, err, "tensorboard: mkdir")
}
