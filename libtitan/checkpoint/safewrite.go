package checkpoint

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"titan/libtitan/dtype"
)

// SafeSource is a tensor to write: Fill gives its row-major little-endian bytes.
type SafeSource struct {
	Name  string
	DType dtype.DType
	Shape []int64
	Fill  Fill
}

// WriteSafetensors makes path a safetensors file, whole or not at all, laid out as the format's own library does: the
// widest elements first, then by name, the header padded to 8 bytes.
func WriteSafetensors(path string, tensors []SafeSource, metadata map[string]string) error {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b SafeSource) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	header, err := safeHeader(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors %s: %w", path, err)
	}
	temp := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".partial")
	f, err := os.Create(temp)
	if err != nil {
		return err
	}
	err = writeSafe(f, header, tensors)
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
	}
	return err
}

func safeHeader(tensors []SafeSource, metadata map[string]string) ([]byte, error) {
	type entry struct {
		DType   string   `json:"dtype"`
		Shape   []int64  `json:"shape"`
		Offsets [2]int64 `json:"data_offsets"`
	}
	b := []byte("{")
	add := func(key string, v any) error {
		k, err1 := json.Marshal(key)
		value, err2 := json.Marshal(v)
		if len(b) > 1 {
			b = append(b, ',')
		}
		b = append(append(append(b, k...), ':'), value...)
		return cmp.Or(err1, err2)
	}
	if len(metadata) > 0 {
		if err := add("__metadata__", metadata); err != nil {
			return nil, err
		}
	}
	at := int64(0)
	for _, t := range tensors {
		n, err := byteSize(t.Shape, t.DType.Size())
		if err == nil && t.DType.Safetensors() == "" {
			err = fmt.Errorf("the format has no dtype %s", t.DType)
		}
		if err == nil {
			err = add(t.Name, entry{t.DType.Safetensors(), append([]int64{}, t.Shape...), [2]int64{at, at + n}})
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", t.Name, err)
		}
		at += n
	}
	b = append(b, '}')
	for len(b)%8 != 0 {
		b = append(b, ' ')
	}
	return b, nil
}

func writeSafe(f io.Writer, header []byte, tensors []SafeSource) error {
	w := bufio.NewWriterSize(f, 1<<16)
	w.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))
	w.Write(header)
	buf := make([]byte, maxBlock)
	for _, t := range tensors {
		n, err := byteSize(t.Shape, t.DType.Size())
		if err != nil {
			return err
		}
		for at := int64(0); at < n; at += maxBlock {
			b := buf[:min(maxBlock, n-at)]
			if err := t.Fill(b, at); err != nil {
				return fmt.Errorf("safetensors: %s: %w", t.Name, err)
			}
			if _, err := w.Write(b); err != nil {
				return err
			}
		}
	}
	return w.Flush()
}
