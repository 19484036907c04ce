package checkpoint

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

const maxSafeHeader = 100_000_000 // bytes, the format's own limit

// safetensorsFile is an open safetensors file.
type safetensorsFile struct {
	Tensors  []safeTensor      // in the order of their data
	Metadata map[string]string // __metadata__; nil if absent

	path string
	file *os.File
	data int64 // where the data start
}

// safeTensor is one tensor's entry: its bytes are [Begin, End) of the file's data.
type safeTensor struct {
	Name       string
	DType      dtype.DType
	Shape      []int64
	Begin, End int64
}

// openSafetensors reads and checks a file's header by the format's rules: ranges that begin at 0, have no holes and no
// overlaps, end where the file does, and hold what dtype and shape say.
func openSafetensors(path string) (*safetensorsFile, error) {
	f, err := openPlain(path)
	if err != nil {
		return nil, err
	}
	s := &safetensorsFile{path: path, file: f}
	if err := s.open(); err != nil {
		f.Close()
		return nil, exit.Input.Errorf("safetensors %s: %w", path, err)
	}
	return s, nil
}

func (s *safetensorsFile) open() error {
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	header, err := readSafeHeader(s.file, info.Size())
	if err != nil {
		return err
	}
	s.data = 8 + int64(len(header))
	if s.Tensors, s.Metadata, err = parseSafeHeader(header); err != nil {
		return err
	}
	return checkSafeLayout(s.Tensors, info.Size()-s.data)
}

func readSafeHeader(f io.ReaderAt, size int64) ([]byte, error) {
	var n [8]byte
	if err := readFull(f, n[:], 0); err != nil {
		return nil, fmt.Errorf("%d bytes: no header", size)
	}
	length := binary.LittleEndian.Uint64(n[:])
	if length > maxSafeHeader || int64(length) > size-8 {
		return nil, fmt.Errorf("a header of %d bytes, where the file has %d and the format allows %d", length, size, maxSafeHeader)
	}
	header := make([]byte, length)
	return header, readFull(f, header, 8)
}

// parseSafeHeader reads the JSON; the tensors come in the order of their data.
func parseSafeHeader(header []byte) ([]safeTensor, map[string]string, error) {
	if len(header) == 0 || header[0] != '{' {
		return nil, nil, errors.New("the header does not begin with {")
	}
	var tensors []safeTensor
	var metadata map[string]string
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(header))
	d.Token() // the brace
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, nil, fmt.Errorf("header: %w", err)
		}
		name, _ := key.(string)
		if seen[name] {
			return nil, nil, fmt.Errorf("header: name %.200q stands twice", name)
		}
		seen[name] = true
		if name == "__metadata__" {
			err = d.Decode(&metadata)
		} else {
			var t safeTensor
			t, err = decodeSafeTensor(d, name)
			tensors = append(tensors, t)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("header: %.200q: %w", name, err)
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, nil, fmt.Errorf("header: %w", err)
	}
	if rest := bytes.TrimRight(header[d.InputOffset():], " \t\r\n"); len(rest) > 0 {
		return nil, nil, fmt.Errorf("header: %d bytes after its end", len(rest))
	}
	slices.SortStableFunc(tensors, func(a, b safeTensor) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	return tensors, metadata, nil
}

func decodeSafeTensor(d *json.Decoder, name string) (safeTensor, error) {
	t := safeTensor{Name: name}
	var fields map[string]json.RawMessage // exact names, where a struct would match in any case
	if err := d.Decode(&fields); err != nil {
		return t, err
	}
	var typ string
	var offsets []int64
	for field, dst := range map[string]any{"dtype": &typ, "shape": &t.Shape, "data_offsets": &offsets} {
		if err := json.Unmarshal(fields[field], dst); err != nil || string(fields[field]) == "null" {
			return t, fmt.Errorf("%s: missing or not as the format has it", field)
		}
	}
	var err error
	if t.DType, err = dtype.FromSafetensors(typ); err != nil {
		return t, err
	}
	n, err := byteSize(t.Shape, t.DType.Size())
	if err != nil {
		return t, err
	}
	if len(offsets) != 2 || offsets[0] < 0 || offsets[1] < offsets[0] {
		return t, fmt.Errorf("data_offsets %v are no range", offsets)
	}
	t.Begin, t.End = offsets[0], offsets[1]
	if t.End-t.Begin != n {
		return t, fmt.Errorf("%d bytes where %s %v takes %d", t.End-t.Begin, t.DType, t.Shape, n)
	}
	return t, nil
}

// checkSafeLayout holds ranges, sorted, against the number of data bytes that the file has.
func checkSafeLayout(tensors []safeTensor, have int64) error {
	at, cut := int64(0), -1
	for i, t := range tensors {
		switch {
		case t.Begin < at:
			return fmt.Errorf("%.200q and %.200q overlap", tensors[i-1].Name, t.Name)
		case t.Begin > at:
			return fmt.Errorf("a hole of %d bytes before %.200q", t.Begin-at, t.Name)
		}
		if at = t.End; at > have && cut < 0 {
			cut = i
		}
	}
	switch {
	case cut >= 0:
		return fmt.Errorf("the file is cut: %d bytes of data where %d are needed; the first tensor affected is %.200q", have, at, tensors[cut].Name)
	case have > at:
		return fmt.Errorf("%d bytes after the last tensor", have-at)
	}
	return nil
}

// Close closes the file.
func (s *safetensorsFile) Close() error { return s.file.Close() }
