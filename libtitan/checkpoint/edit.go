package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/exit"
)

// Edited is an element before and after [Edit].
type Edited struct {
	Index    []int64
	Old, New string
}

// Edit writes elements of a tensor where it lies: each of sets is INDEX=VALUE, such as 3,0=nan, or =1.5 for a scalar.
// Values are rounded to the tensor's type; what it cannot hold is refused. Each file that changes is written anew
// beside the old one and takes its place by a rename; CRCs and checksums follow.
func Edit(ctx context.Context, path, fqn string, sets []string) ([]Edited, error) {
	src, err := OpenSource(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	it, ok := findItem(src, fqn)
	switch {
	case !ok:
		return nil, exit.Input.Errorf("checkpoint %s: %s: no such item%s", path, fqn, nearest(src, fqn))
	case it.Kind != KindTensor:
		return nil, exit.Input.Errorf("checkpoint %s: %s: a Python object: only elements of tensors are edited", path, fqn)
	}
	e := editor{src: src, it: it, files: map[string]*editedFile{}}
	for _, set := range sets {
		if err := e.set(set); err != nil {
			return nil, err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.files)) {
		if err := e.files[name].write(ctx, name); err != nil {
			return nil, fmt.Errorf("checkpoint %s: %s: %w", path, fqn, err)
		}
	}
	return e.done, nil
}

// editor gathers what is to change.
type editor struct {
	src   Source
	it    Item
	files map[string]*editedFile // by path
	done  []Edited
}

// editedFile is what changes in a file.
type editedFile struct {
	elements []patch
	records  map[int64]editedRecord // by where their data begin in the file
}

type patch struct {
	at int64
	b  []byte
}

// editedRecord is a record of a zip that begins at base, whose CRC follows its data.
type editedRecord struct {
	base, start int64
	record      zipRecord
}

// set files one INDEX=VALUE.
func (e *editor) set(text string) error {
	index, value, ok := strings.Cut(text, "=")
	if !ok {
		return exit.Usage.Errorf("--set %q is not INDEX=VALUE, such as 3,0=nan", text)
	}
	at, err := parseIndex(index, e.it.Shape)
	if err != nil {
		return exit.Usage.Errorf("--set %q: %w", text, err)
	}
	b, err := encodeElement(e.it.DType, strings.TrimSpace(value))
	if err != nil {
		return exit.Usage.Errorf("--set %q: %w", text, err)
	}
	ones := make([]int64, len(at))
	for d := range ones {
		ones[d] = 1
	}
	old := make([]byte, len(b))
	if err := e.src.ReadRegion(e.it.FQN, at, ones, old); err != nil {
		return err
	}
	e.done = append(e.done, Edited{at, formatElement(e.it.DType, old), formatElement(e.it.DType, b)})
	if err := e.place(at, b); err != nil {
		return exit.Input.Errorf("checkpoint %s: %s: %w", e.src.Name(), e.it.FQN, err)
	}
	return nil
}

// parseIndex reads "3,0", or "" for a scalar.
func parseIndex(text string, shape []int64) ([]int64, error) {
	text = strings.Trim(text, " []()")
	parts := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
	if len(parts) != len(shape) {
		return nil, fmt.Errorf("an index of %d dims where the tensor has %d: %v", len(parts), len(shape), shape)
	}
	at := make([]int64, len(shape))
	for d, p := range parts {
		n, err := strconv.ParseInt(p, 10, 64)
		if err != nil || n < 0 || n >= shape[d] {
			return nil, fmt.Errorf("%q is no index within a dim of %d", p, shape[d])
		}
		at[d] = n
	}
	return at, nil
}

// place finds the file and the byte of an element.
func (e *editor) place(at []int64, b []byte) error {
	chunk := slices.IndexFunc(e.it.Chunks, func(c Box) bool { return c.holds(at) })
	if chunk < 0 {
		return errors.New("no chunk holds the element")
	}
	within := make([]int64, len(at))
	for d := range at {
		within[d] = at[d] - e.it.Chunks[chunk].Offsets[d]
	}
	switch src := e.src.(type) {
	case *Reader:
		t := src.meta.tensors[e.it.FQN]
		l := t.at[chunk]
		if len(l.transforms) > 0 {
			return fmt.Errorf("the item in %s is compressed (%s): convert the checkpoint without --compress first", l.path, strings.Join(l.transforms, ", "))
		}
		data, size, err := src.openItem(l, l.length)
		if err != nil {
			return err
		}
		z, err := openZip(data, size)
		if err != nil {
			return err
		}
		item, err := src.tensorItem(t, chunk)
		if err != nil {
			return err
		}
		return e.inZip(filepath.Join(src.folder.dir, l.path), l.offset, z, item, within, b)
	case *torchSource:
		if src.zip == nil {
			return errors.New("a file of the form of before PyTorch 1.6 is not edited: convert it --to torch first")
		}
		return e.inZip(src.name, 0, src.zip, src.values[e.it.FQN].(*tensorItem), within, b)
	case *safeSource:
		p := src.parts[e.it.FQN][chunk]
		f := src.files[p.file]
		e.file(f.path).add(f.data+p.at.Begin+flatIndex(within, contiguous(p.box.Sizes))*int64(len(b)), b)
		return nil
	}
	return fmt.Errorf("format %s is not edited", e.src.Format())
}

// holds reports whether an element lies in the box.
func (a Box) holds(at []int64) bool {
	for d := range at {
		if at[d] < a.Offsets[d] || at[d] >= a.Offsets[d]+a.Sizes[d] {
			return false
		}
	}
	return true
}

func flatIndex(at, strides []int64) int64 {
	n := int64(0)
	for d := range at {
		n += at[d] * strides[d]
	}
	return n
}

func (e *editor) file(path string) *editedFile {
	if e.files[path] == nil {
		e.files[path] = &editedFile{records: map[int64]editedRecord{}}
	}
	return e.files[path]
}

// inZip notes an element of a tensor in the zip at base of a file, and that the CRC of its storage's record changes.
func (e *editor) inZip(path string, base int64, z *zipFile, t *tensorItem, within []int64, b []byte) error {
	r, ok := z.records["data/"+t.storage.key]
	if !ok {
		return fmt.Errorf("no record %.100q", "data/"+t.storage.key)
	}
	f := e.file(path)
	f.add(base+t.storage.at+(t.offset+flatIndex(within, t.strides))*int64(len(b)), b)
	f.records[base+t.storage.at] = editedRecord{base, base + t.storage.at, r}
	return nil
}

func (f *editedFile) add(at int64, b []byte) { f.elements = append(f.elements, patch{at, b}) }

// write makes the changed file and puts it in the old one's place.
func (f *editedFile) write(ctx context.Context, path string) error {
	dir, name := filepath.Split(path)
	temp := filepath.Join(dir, "."+name+partialSuffix)
	if err := f.writeCopy(ctx, path, temp); err != nil {
		os.Remove(temp)
		return err
	}
	sums, err := readChecksums(dir)
	if err == nil {
		err = renewChecksum(ctx, sums, name, temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		os.Remove(temp)
		return err
	}
	if sums != nil {
		if err := storeChecksums(dir, sums); err != nil {
			return err
		}
	}
	return syncPath(filepath.Clean(dir))
}

// renewChecksum gives a file's line what temp, which is to be that file, holds.
func renewChecksum(ctx context.Context, sums []fileSum, name, temp string) error {
	i := slices.IndexFunc(sums, func(s fileSum) bool { return s.File == name })
	if i < 0 {
		return nil
	}
	sum, err := sumFile(ctx, temp, make([]byte, maxBlock), nil)
	sum.File = name
	sums[i] = sum
	return err
}

func (f *editedFile) writeCopy(ctx context.Context, path, temp string) error {
	in, err := os.Open(path)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	out, err := os.OpenFile(temp, os.O_CREATE|os.O_TRUNC|os.O_RDWR, info.Mode().Perm())
	if err != nil {
		return err
	}
	err = copyFile(ctx, out, in)
	for _, p := range f.elements {
		if err == nil {
			_, err = out.WriteAt(p.b, p.at)
		}
	}
	for _, r := range f.records {
		if err == nil {
			err = r.renewCRC(ctx, out)
		}
	}
	if err == nil {
		err = out.Sync()
	}
	return errors.Join(err, out.Close())
}

// copyFile copies piece by piece, so that a signal need not wait for the end.
func copyFile(ctx context.Context, out io.Writer, in io.Reader) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		switch _, err := io.CopyN(out, in, maxBlock); err {
		case nil:
		case io.EOF:
			return nil
		default:
			return err
		}
	}
}

// renewCRC puts a record's CRC where its old one stands: in the directory, after the data, and in the local header. A
// record without a CRC keeps none.
func (r editedRecord) renewCRC(ctx context.Context, f *os.File) error {
	if r.record.crc == 0 {
		return ctx.Err()
	}
	sum := crc32.NewIEEE()
	if _, err := io.Copy(sum, io.NewSectionReader(f, r.start, r.record.size)); err != nil {
		return err
	}
	const crcInEntry, crcInHeader, crcInDescriptor = 16, 14, 4
	old := littleEndian32(r.record.crc)
	for _, at := range []int64{r.base + r.record.entry + crcInEntry, r.base + r.record.offset + crcInHeader, r.start + r.record.size + crcInDescriptor} {
		var have [4]byte
		if err := readFull(f, have[:], at); err != nil {
			return err
		}
		if have != old {
			continue
		}
		new := littleEndian32(sum.Sum32())
		if _, err := f.WriteAt(new[:], at); err != nil {
			return err
		}
	}
	return ctx.Err()
}
