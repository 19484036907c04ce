package checkpoint

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// SafeSource is a tensor to write: Fill gives its row-major little-endian bytes.
type SafeSource struct {
	Name  string
	DType dtype.DType
	Shape []int64
	Fill  Fill
}

// bytes is the size of a tensor that was checked.
func (t *SafeSource) bytes() int64 {
	n, _ := byteSize(t.Shape, t.DType.Size())
	return n
}

// writeSafeFile makes path a safetensors file, whole or not at all.
func writeSafeFile(ctx context.Context, path string, tensors []SafeSource, metadata map[string]string, o WriteOptions) error {
	f, err := planSafe(tensors, metadata)
	if err != nil {
		return fmt.Errorf("safetensors %s: %w", path, err)
	}
	st, err := newFileStage(path, o.Replace)
	if err != nil {
		return err
	}
	f.file = st.file
	if err := writeSafes(ctx, []*safePlan{f}, o); err != nil {
		st.discard()
		return err
	}
	return st.commit(ctx)
}

// safePlan is a file with every byte's place decided.
type safePlan struct {
	header  []byte // with its length before it
	tensors []SafeSource
	file    *os.File
}

// planSafe lays a file out as the format's own library does: the widest elements first, then by name, the header padded
// to 8 bytes.
func planSafe(tensors []SafeSource, metadata map[string]string) (*safePlan, error) {
	tensors = slices.Clone(tensors)
	slices.SortStableFunc(tensors, func(a, b SafeSource) int {
		return cmp.Or(cmp.Compare(b.DType.Size(), a.DType.Size()), cmp.Compare(a.Name, b.Name))
	})
	header, err := safeHeader(tensors, metadata)
	if err != nil {
		return nil, err
	}
	if len(header) > maxSafeHeader {
		return nil, exit.Input.Errorf("a header of %d bytes, where the format allows %d: write more files (--max-shard-size)", len(header), maxSafeHeader)
	}
	return &safePlan{header: append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), tensors: tensors}, nil
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
	for i := range tensors {
		t := &tensors[i]
		n, err := byteSize(t.Shape, t.DType.Size())
		if err == nil && t.DType.Safetensors() == "" {
			err = exit.Input.Errorf("the format has no dtype %s", t.DType)
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

// safeBlock is a range of one tensor's bytes and its place in a file.
type safeBlock struct {
	file   *os.File
	tensor *SafeSource
	off, n int64 // in the tensor
	at     int64 // in the file
}

// writeSafes writes and flushes open files, several blocks at a time.
func writeSafes(ctx context.Context, plans []*safePlan, o WriteOptions) error {
	for _, p := range plans {
		if _, err := p.file.Write(p.header); err != nil {
			return err
		}
	}
	if err := writeSafeBlocks(ctx, plans, o); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, p := range plans {
		g.Go(func() error { return cmp.Or(ctx.Err(), p.file.Sync()) })
	}
	return g.Wait()
}

func writeSafeBlocks(ctx context.Context, plans []*safePlan, o WriteOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	blocks := make(chan safeBlock, 4*o.jobs())
	size := o.blockSize()
	g.Go(func() error {
		defer close(blocks)
		for _, p := range plans {
			if err := p.feed(ctx, blocks, size); err != nil {
				return err
			}
		}
		return nil
	})
	for range o.jobs() {
		g.Go(func() error {
			buf := make([]byte, size)
			for b := range blocks {
				if err := b.write(buf); err != nil {
					return fmt.Errorf("safetensors: writing %s: %w", b.tensor.Name, err)
				}
				report(o.Progress, int(b.n))
			}
			return nil
		})
	}
	return g.Wait()
}

func (p *safePlan) feed(ctx context.Context, blocks chan<- safeBlock, size int64) error {
	at := int64(len(p.header))
	for i := range p.tensors {
		t := &p.tensors[i]
		for off := int64(0); off < t.bytes(); off += size {
			select {
			case blocks <- safeBlock{p.file, t, off, min(size, t.bytes()-off), at + off}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		at += t.bytes()
	}
	return nil
}

func (b safeBlock) write(buf []byte) error {
	if err := b.tensor.Fill(buf[:b.n], b.off); err != nil {
		return err
	}
	_, err := b.file.WriteAt(buf[:b.n], b.at)
	return err
}
