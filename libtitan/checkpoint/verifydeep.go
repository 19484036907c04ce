package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"

	"titan/libtitan/manifest"
)

// checksums holds the files to the side file and says which are as they were written.
func (v *verifier) checksums(dir string, bad map[string]bool) (sound map[string]bool, err error) {
	sums, err := readChecksums(dir)
	if err != nil {
		return nil, err
	}
	sound = map[string]bool{}
	total := int64(0)
	for _, s := range sums {
		total += s.Bytes
	}
	if v.begin(total); sums == nil {
		v.begin(v.Bytes)
	}
	err = inOrder(v.ctx, v.o.ReadOptions, sums, func(ctx context.Context, s fileSum, block int64) (error, error) {
		got, err := sumFile(ctx, filepath.Join(dir, s.File), make([]byte, block), v.o.Progress)
		switch {
		case bad[s.File]:
			return nil, nil // told already
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("file %s is missing, %s has its checksum", s.File, checksumName), nil
		case err == nil && got != s:
			return fmt.Errorf("file %s is not as it was written: %d bytes with CRC %s where %d with %s were", s.File, got.Bytes, got.CRC32, s.Bytes, s.CRC32), nil
		}
		return nil, err
	}, func(s fileSum, fault error) error {
		if fault != nil {
			return v.tell(fault)
		}
		sound[s.File] = !bad[s.File]
		return nil
	})
	v.Held = "checksums of " + manifest.Counted(len(sums), "file")
	if sums == nil {
		v.Held = "the CRCs of its zips: there is no " + checksumName
	}
	return sound, err
}

// read reads an item whole.
func (c *itemCheck) read(at *location, limit int64) error {
	data, size, err := c.r.openItem(at, limit)
	if err != nil {
		return err
	}
	z, err := openZip(data, size)
	if err != nil {
		return err
	}
	if err := z.check(c.ctx, c.buf, nil); err != nil {
		return fmt.Errorf("item in %s at %d: %w", at.path, at.offset, err)
	}
	return nil
}

// check reads every record and holds it to its CRC; a CRC of 0 is one that was not written.
func (z *zipFile) check(ctx context.Context, buf []byte, progress func(int64)) error {
	for _, name := range slices.Sorted(maps.Keys(z.records)) {
		r := z.records[name]
		at, err := z.start(r)
		if err != nil {
			return err
		}
		crc := crc32.NewIEEE()
		if _, err := io.CopyBuffer(struct{ io.Writer }{crc}, struct{ io.Reader }{io.NewSectionReader(z.r, at, r.size)}, buf); err != nil {
			return err
		}
		report(progress, int(r.size))
		if sum := crc.Sum32(); r.crc != 0 && sum != r.crc {
			return fmt.Errorf("record %.100q is not as it was written: its CRC is %08x where %08x was", name, sum, r.crc)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// source verifies a checkpoint of another format, which opening has checked all but the data of.
func (v *verifier) source(src Source) error {
	v.Items, v.Files, v.Bytes = len(src.Items()), 1, TensorBytes(src)
	v.begin(v.Bytes)
	if s, ok := src.(*safeSource); ok {
		v.Files = len(s.files)
		stale, err := s.stale()
		if err != nil {
			return err
		}
		if err := v.tell(stale...); err != nil {
			return err
		}
	}
	if !v.o.Deep {
		return nil
	}
	if s, ok := src.(*torchSource); ok && s.zip != nil {
		v.Held = "the CRCs of its zip"
		if err := s.zip.check(v.ctx, make([]byte, maxBlock), v.o.Progress); err != nil {
			return v.tell(err)
		}
		return nil
	}
	v.Held = "nothing: the format has no checksums; every byte was read"
	return inOrder(v.ctx, v.o.ReadOptions, src.Items(), func(ctx context.Context, it Item, block int64) (error, error) {
		if it.Kind == KindBytes {
			return nil, ctx.Err()
		}
		return nil, stream(src, it, block, func(b []byte) error {
			report(v.o.Progress, len(b))
			return ctx.Err()
		})
	}, func(Item, error) error { return nil })
}
