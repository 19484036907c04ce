package checkpoint

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/pickle"
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
	f.Add("\x80\x02ctorch\nSize\nq\x00K\x07q\x05K\x01\x86q\x06\x85q\x07Rq\x01h\x06h\x00K\x01\x85q\x08\x85R.")
	f.Fuzz(func(t *testing.T, data string) {
		md, err := parseMetadata(data)
		slowly, slowErr := parseSlowly(data)
		require.Equal(t, slowErr == nil, err == nil, "%v, %v", err, slowErr)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.Equal(t, slowly, md)
		r := newReader(t.TempDir(), md)
		for _, err := range r.faults() {
			require.NotContains(t, err.Error(), "\n")
		}
		_, _, _ = Resolve(r, []Want{{FQN: "w"}})
	})
}

func parseSlowly(data string) (*metadata, error) {
	program, err := pickle.Check(data, &metadataOps)
	if err != nil {
		return nil, err
	}
	m := newMetaMachine(program)
	m.slow = true
	return m.parse()
}

// Several instructions at a time give what one at a time does.
func TestFastMetadataIsTheSame(t *testing.T) {
	paths, err := filepath.Glob(fixtures + "/*/ckpt/.metadata")
	require.NoError(t, err)
	for _, path := range append(paths, filepath.Join(smallFolder(t, nil), ".metadata")) {
		b, err := os.ReadFile(path)
		require.NoError(t, err)
		fast, err := parseMetadata(string(b))
		require.NoError(t, err)
		slow, err := parseSlowly(string(b))
		require.NoError(t, err)
		require.Equal(t, slow, fast, path)
	}
}

func FuzzChecksums(f *testing.F) {
	f.Add([]byte(`{"file":".metadata","bytes":12,"crc32":"00c0ffee"}` + "\n" + `{"file":"__0_0.distcp","bytes":0,"crc32":"00000000"}` + "\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		sums, err := parseChecksums(bytes.NewReader(data))
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, s := range sums {
			require.NoError(t, checkName(s.File))
		}
	})
}

func FuzzSafetensorsIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"../x"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(t.TempDir(), safeIndex)
		require.NoError(t, os.WriteFile(path, data, 0o666))
		index, err := readSafeIndex(path)
		var paths []string
		if err == nil {
			paths, err = index.files(filepath.Dir(path))
		}
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, p := range paths {
			require.Equal(t, filepath.Dir(path), filepath.Dir(p))
		}
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
