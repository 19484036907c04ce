package checkpoint

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzMetadata(f *testing.F) {
	for _, name := range []string{"/f9b_file_per_item/ckpt/.metadata", "/f9c_no_collectives/ckpt/__0.metadata"} {
		b, err := os.ReadFile(fixtures + name)
		require.NoError(f, err)
		f.Add(string(b))
	}
	b, err := os.ReadFile(smallFolder(f, nil) + "/.metadata")
	require.NoError(f, err)
	f.Add(string(b))
	f.Fuzz(func(t *testing.T, data string) {
		md, err := parseMetadata(data)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		r := newReader(t.TempDir(), md)
		for _, err := range r.faults() {
			require.NotContains(t, err.Error(), "\n")
		}
		_, _, _ = Resolve(r, []Want{{FQN: "w"}})
	})
}

func FuzzItem(f *testing.F) {
	for _, name := range []string{"/f9b_file_per_item/ckpt/__0_9.distcp", "/f9c_no_collectives/ckpt/__0_0.distcp"} {
		b, err := os.ReadFile(fixtures + name)
		require.NoError(f, err)
		f.Add(b)
	}
	object := newZipItem([]byte("\x80\x02]q\x00(K\x01NX\x01\x00\x00\x00xe."), -1)
	f.Add(append(object.head, object.tail(0)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := openZip(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		v, err := readItem(z)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		if item, ok := v.(*tensorItem); ok {
			copyWhole(t, z, item)
		}
		p := plainer{left: 1 << 16}
		_, _ = p.plain(v, 0)
	})
}

// copyWhole reads a tensor as ReadRegion would; every view that passed the checks lies within the item.
func copyWhole(t *testing.T, z *zipFile, item *tensorItem) {
	n, err := byteSize(item.shape, item.dtype.Size())
	require.NoError(t, err)
	if n > 1<<16 { // an expanded tensor may be far larger than its storage
		return
	}
	elem, strides := int64(item.dtype.Size()), contiguous(item.shape)
	cp := boxCopy{elem: elem, src: item.offset * elem}
	for d, size := range item.shape {
		cp.dims = append(cp.dims, copyDim{size, item.strides[d] * elem, strides[d] * elem})
	}
	require.NoError(t, cp.run(z.r, item.storage.at, z.size, make([]byte, n)))
}

func FuzzSafetensorsHeader(f *testing.F) {
	f.Add([]byte(twoTensors), int64(32))
	f.Add([]byte(`{"__metadata__":{"format":"pt"}} `), int64(0))
	f.Fuzz(func(t *testing.T, header []byte, have int64) {
		tensors, _, err := parseSafeHeader(header)
		if err == nil {
			err = checkSafeLayout(tensors, max(have, 0))
		}
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		end := int64(0)
		for _, x := range tensors {
			require.Equal(t, end, x.Begin)
			end = x.End
		}
		require.Equal(t, max(have, 0), end)
	})
}
