package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// safeFile is a file with a header of our own wording, padded with spaces to pad bytes, before data bytes of data.
func safeFile(header string, pad, data int) []byte {
	header += strings.Repeat(" ", max(0, pad-len(header)))
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), pattern(int64(data), 3)...)
}

const twoTensors = `{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"BF16","shape":[4],"data_offsets":[24,32]}}`

func TestOddButSoundSafetensors(t *testing.T) {
	for name, c := range map[string]struct {
		file    []byte
		tensors int
	}{
		"plain":           {safeFile(twoTensors, 0, 32), 2},
		"100,000 bytes":   {safeFile(twoTensors, 100_000, 32), 2},
		"empty metadata":  {safeFile(`{"__metadata__":{},`+twoTensors[1:], 0, 32), 2},
		"no tensors":      {safeFile(`{}`, 0, 0), 0},
		"metadata alone":  {safeFile(`{"__metadata__":{"format":"pt"}}`, 0, 0), 0},
		"unordered":       {safeFile(`{"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"a":{"dtype":"F16","shape":[],"data_offsets":[0,2]}}`, 0, 3), 2},
		"empty and 0-d":   {safeFile(`{"e":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"s":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}`, 0, 4), 2},
		"unaligned start": {safeFile(twoTensors, len(twoTensors)+1, 32), 2},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.safetensors")
			require.NoError(t, os.WriteFile(path, c.file, 0o666))
			s, err := openSafetensors(path)
			require.NoError(t, err)
			defer s.Close()
			require.Len(t, s.Tensors, c.tensors)
		})
	}
}

func TestUnsoundSafetensors(t *testing.T) {
	one := func(entry string) []byte { return safeFile(`{"a":`+entry+`}`, 0, 24) }
	huge := safeFile(twoTensors, 0, 32)
	binary.LittleEndian.PutUint64(huge, 1<<63)
	for name, c := range map[string]struct {
		file []byte
		want string
	}{
		"cut":             {safeFile(twoTensors, 0, 27), `the file is cut: 27 bytes of data where 32 are needed; the first tensor affected is "b"`},
		"cut to nothing":  {safeFile(twoTensors, 0, 0), `the file is cut: 0 bytes of data where 32 are needed; the first tensor affected is "a"`},
		"extra":           {safeFile(twoTensors, 0, 39), "7 bytes after the last tensor"},
		"overlap":         {safeFile(strings.Replace(twoTensors, "[24,32]", "[20,28]", 1), 0, 28), `"a" and "b" overlap`},
		"hole":            {safeFile(strings.Replace(twoTensors, "[24,32]", "[28,36]", 1), 0, 36), `a hole of 4 bytes before "b"`},
		"hole at 0":       {safeFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 0, 8), `a hole of 4 bytes before "a"`},
		"mismatch":        {one(`{"dtype":"F32","shape":[2,2],"data_offsets":[0,24]}`), `header: "a": 24 bytes where float32 [2 2] takes 16`},
		"huge header":     {huge, "a header of 9223372036854775808 bytes, where the file has 153 and the format allows 100000000"},
		"no header":       {[]byte{1, 2, 3}, "3 bytes: no header"},
		"not json":        {safeFile("[1]", 0, 0), "the header does not begin with {"},
		"cut json":        {safeFile(`{"a":`, 0, 0), `header: "a": EOF`},
		"after the end":   {safeFile(`{} x`, 0, 0), "header: 2 bytes after its end"},
		"twice":           {safeFile(`{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}`, 0, 8), `header: name "a" stands twice`},
		"no shape":        {one(`{"dtype":"F32","data_offsets":[0,24]}`), `header: "a": shape: missing or not as the format has it`},
		"null shape":      {one(`{"dtype":"F32","shape":null,"data_offsets":[0,24]}`), `header: "a": shape: missing or not as the format has it`},
		"negative":        {one(`{"dtype":"F32","shape":[-6],"data_offsets":[0,24]}`), `header: "a": negative size in [-6]`},
		"overflow":        {one(`{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,24]}`), `header: "a": the sizes [4294967296 4294967296] multiply beyond 63 bits`},
		"dtype":           {one(`{"dtype":"F31","shape":[6],"data_offsets":[0,24]}`), `header: "a": unknown safetensors dtype "F31"`},
		"backward range":  {one(`{"dtype":"F32","shape":[6],"data_offsets":[24,0]}`), `header: "a": data_offsets [24 0] are no range`},
		"metadata number": {safeFile(`{"__metadata__":{"a":1}}`, 0, 0), `header: "__metadata__": json: cannot unmarshal number into Go value of type string`},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "x.safetensors")
			require.NoError(t, os.WriteFile(path, c.file, 0o666))
			_, err := openSafetensors(path)
			require.EqualError(t, err, fmt.Sprintf("safetensors %s: %s", path, c.want))
			require.Equal(t, int(exit.Input), exit.Code(err))
		})
	}
}

func writeSafetensors(path string, tensors []SafeSource, metadata map[string]string) error {
	return writeSafeFile(context.Background(), path, tensors, metadata, WriteOptions{})
}

func TestSafetensorsReadBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.safetensors")
	big := pattern(3<<20, 9)
	from := func(b []byte) Fill { return func(dst []byte, off int64) error { copy(dst, b[off:]); return nil } }
	sources := []SafeSource{
		{"z", dtype.UInt8, []int64{3}, from(big)}, {"empty", dtype.Int64, []int64{0, 5}, from(nil)},
		{"w", dtype.Float32, []int64{3, 1 << 18}, from(big)}, {"s", dtype.Float32, nil, from(big[8:])},
	}
	require.NoError(t, writeSafetensors(path, sources, map[string]string{"format": "pt"}))
	src := openSource(t, path).(*safeSource)
	require.Equal(t, map[string]string{"format": "pt"}, src.files[0].Metadata)
	require.Zero(t, src.files[0].data%8)
	require.Len(t, src.items, len(sources))
	for _, want := range sources {
		got := src.items[src.byName[want.Name]]
		b := make([]byte, want.bytes())
		require.NoError(t, want.Fill(b, 0))
		require.Equal(t, want.DType, got.DType)
		require.Equal(t, b, readAll(t, src, got), want.Name)
	}
}

// What the format's own library wrote.
func TestLibrarySafetensors(t *testing.T) {
	want, src := expected(t, "testdata/safetensors"), openSource(t, "testdata/safetensors/model.safetensors")
	require.Len(t, src.Items(), len(want))
	for _, it := range src.Items() {
		require.Equal(t, want[it.FQN].SHA256, fmt.Sprintf("%x", sha256.Sum256(readAll(t, src, it))), it.FQN)
		require.Equal(t, want[it.FQN].DType, it.DType.String())
		require.Equal(t, want[it.FQN].Shape, it.Shape)
	}
}
