package checkpoint

import (
	"context"
	"fmt"
	"hash/crc32"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
)

// compressItems writes every item as one zstd frame. Where an item lies is known when those before it are written, so a
// file is written from its start to its end, several files at a time.
func (p *writePlan) compressItems(ctx context.Context, o WriteOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(o.jobs())
	for _, f := range p.files {
		g.Go(func() error {
			z, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
			if err != nil {
				return err
			}
			defer z.Close()
			c := compressor{ctx: ctx, z: z, buf: make([]byte, o.blockSize()), progress: o.Progress}
			f.size = 0
			for _, it := range f.items {
				if err := c.item(f, it); err != nil {
					return fmt.Errorf("checkpoint: writing %s: %w", it.fqn, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// compressor is one file's encoder and buffer.
type compressor struct {
	ctx      context.Context
	z        *zstd.Encoder
	buf      []byte
	progress func(int64)
}

// item appends an item to its file.
func (c *compressor) item(f *outFile, it *writeItem) error {
	out := &counter{f: f}
	it.offset = f.size
	c.z.Reset(out)
	if _, err := c.z.Write(it.zip.head); err != nil {
		return err
	}
	for off := int64(0); off < it.zip.dataBytes; off += int64(len(c.buf)) {
		data := c.buf[:min(int64(len(c.buf)), it.zip.dataBytes-off)]
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := it.chunk.Fill(data, off); err != nil {
			return err
		}
		it.crc = crc32.Update(it.crc, crc32.IEEETable, data)
		if _, err := c.z.Write(data); err != nil {
			return err
		}
		report(c.progress, len(data))
	}
	if _, err := c.z.Write(it.zip.tail(it.crc)); err != nil {
		return err
	}
	if err := c.z.Close(); err != nil {
		return err
	}
	it.length = f.size - it.offset
	return nil
}

// counter appends to a file and keeps its size.
type counter struct{ f *outFile }

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.f.f.Write(b)
	c.f.size += int64(n)
	c.f.crc, c.f.streamed = crc32.Update(c.f.crc, crc32.IEEETable, b[:n]), true
	return n, err
}
