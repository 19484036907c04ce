package checkpoint

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"titan/libtitan/exit"
)

// checksumName is a file beside .metadata that PyTorch does not look at: a line of JSON for each other file of the
// folder, in order of name.
const checksumName = ".titan-checksums"

const maxChecksums = 256 << 20 // bytes of that file

// fileSum is a line of it.
type fileSum struct {
	File  string `json:"file"`
	Bytes int64  `json:"bytes"`
	CRC32 string `json:"crc32"` // of the whole file, IEEE's polynomial, 8 hexadecimal digits
}

func newFileSum(name string, bytes int64, crc uint32) fileSum {
	return fileSum{name, bytes, fmt.Sprintf("%08x", crc)}
}

// writeChecksums writes the side file of a folder that is otherwise whole.
func (p *writePlan) writeChecksums(ctx context.Context, dir string) error {
	sums := make([]fileSum, 0, len(p.files)+1)
	metadata, err := sumFile(ctx, filepath.Join(dir, ".metadata"), make([]byte, maxBlock), nil)
	if err != nil {
		return err
	}
	sums = append(sums, metadata)
	for _, f := range p.files {
		sums = append(sums, newFileSum(f.name, f.size, f.sum()))
	}
	return storeChecksums(dir, sums)
}

// sum is a written file's CRC, joined from those of its items.
func (f *outFile) sum() uint32 {
	if f.streamed {
		return f.crc
	}
	crc := uint32(0)
	for _, it := range f.items {
		tail := it.zip.tail(it.crc)
		crc = joinCRC(crc, crc32.ChecksumIEEE(it.zip.head), int64(len(it.zip.head)))
		crc = joinCRC(crc, it.crc, it.zip.dataBytes)
		crc = joinCRC(crc, crc32.ChecksumIEEE(tail), int64(len(tail)))
	}
	return crc
}

// storeChecksums makes the side file, whole or not at all.
func storeChecksums(dir string, sums []fileSum) error {
	path := filepath.Join(dir, checksumName)
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	e := json.NewEncoder(w)
	for _, s := range sums {
		err = errors.Join(err, e.Encode(s))
	}
	err = errors.Join(err, w.Flush(), f.Sync(), f.Close())
	if err != nil {
		os.Remove(path + ".tmp")
		return err
	}
	return os.Rename(path+".tmp", path)
}

// readChecksums reads the side file. A folder without one has none.
func readChecksums(dir string) ([]fileSum, error) {
	path := filepath.Join(dir, checksumName)
	f, err := openPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	sums, err := parseChecksums(io.LimitReader(f, maxChecksums))
	if err != nil {
		return nil, exit.Input.Errorf("checkpoint %s: %w", path, err)
	}
	return sums, nil
}

func parseChecksums(r io.Reader) ([]fileSum, error) {
	var sums []fileSum
	seen := map[string]bool{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		var s fileSum
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if err := checkName(s.File); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
		if s.Bytes < 0 || len(s.CRC32) != 8 || seen[s.File] {
			return nil, fmt.Errorf("line %d: no size, no CRC, or a second line for %.200q", n, s.File)
		}
		seen[s.File] = true
		sums = append(sums, s)
	}
	return sums, lines.Err()
}

// sumFile reads a file whole, by way of buf.
func sumFile(ctx context.Context, path string, buf []byte, progress func(int64)) (fileSum, error) {
	f, err := openPlain(path)
	if err != nil {
		return fileSum{}, err
	}
	defer f.Close()
	crc, size := uint32(0), int64(0)
	for {
		n, err := f.Read(buf)
		crc, size = crc32.Update(crc, crc32.IEEETable, buf[:n]), size+int64(n)
		report(progress, n)
		if err == io.EOF {
			return newFileSum(filepath.Base(path), size, crc), nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return fileSum{}, err
		}
	}
}
