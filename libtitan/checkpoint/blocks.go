package checkpoint

import (
	"context"
	"fmt"
	"hash/crc32"
	"runtime"

	"golang.org/x/sync/errgroup"
)

const (
	maxBlock = 1 << 20 // stays in the cache between filling, CRC and writing
	minBlock = 1 << 16
)

// jobs and blockSize turn limits into goroutines and the bytes that each has in hand.
func (o *WriteOptions) jobs() int {
	if o.Jobs > 0 {
		return o.Jobs
	}
	return runtime.GOMAXPROCS(0)
}

func (o *WriteOptions) blockSize() int64 {
	memory := o.MaxMemory
	if memory <= 0 {
		memory = 256 << 20
	}
	block := memory / int64(2*o.jobs())
	return min(max(block, minBlock), maxBlock) &^ 4095
}

// writeTask is a block of an item's data, or the whole item where that is small.
type writeTask struct {
	item  *writeItem
	block int // -1 for the whole item
}

// writeItems fills and writes every item, several blocks at a time.
func (p *writePlan) writeItems(ctx context.Context, o WriteOptions) error {
	g, ctx := errgroup.WithContext(ctx)
	tasks := make(chan writeTask, 4*o.jobs())
	block := o.blockSize()
	g.Go(func() error {
		defer close(tasks)
		return p.feed(ctx, tasks, block)
	})
	for range o.jobs() {
		g.Go(func() error {
			w := blockWriter{buf: make([]byte, block), progress: o.Progress}
			for t := range tasks {
				if err := w.do(ctx, t); err != nil {
					return fmt.Errorf("checkpoint: writing %s: %w", t.item.fqn, err)
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// feed hands the blocks out in the order of the state, file by file or not: a source that has to be decoded is then
// read from its start to its end.
func (p *writePlan) feed(ctx context.Context, tasks chan<- writeTask, block int64) error {
	send := func(t writeTask) error {
		select {
		case tasks <- t:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	for _, it := range p.items {
		first, last := -1, -1
		if it.zip.dataBytes > 0 && it.zip.size() > block {
			n := int((it.zip.dataBytes + block - 1) / block)
			it.blocks = make([]uint32, n)
			it.left.Store(int64(n))
			first, last = 0, n-1
		}
		for b := first; b <= last; b++ {
			if err := send(writeTask{it, b}); err != nil {
				return err
			}
		}
	}
	return nil
}

// blockWriter is one goroutine's buffer.
type blockWriter struct {
	buf      []byte
	progress func(int64)
}

func (w *blockWriter) do(ctx context.Context, t writeTask) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if t.block < 0 {
		return w.whole(t.item)
	}
	return w.part(t.item, t.block)
}

// whole writes a small item by one call.
func (w *blockWriter) whole(it *writeItem) error {
	b := append(w.buf[:0], it.zip.head...)
	if it.zip.dataBytes > 0 {
		data := b[len(b) : len(b)+int(it.zip.dataBytes)]
		if err := it.chunk.Fill(data, 0); err != nil {
			return err
		}
		it.crc = crc32.ChecksumIEEE(data)
		b = b[:len(b)+len(data)]
	}
	b = append(b, it.zip.tail(it.crc)...)
	return w.writeAt(it, b, 0)
}

// part writes one block; who writes an item's last one joins the CRCs and frames the item.
func (w *blockWriter) part(it *writeItem, block int) error {
	size := int64(len(w.buf))
	off := int64(block) * size
	data := w.buf[:min(size, it.zip.dataBytes-off)]
	if err := it.chunk.Fill(data, off); err != nil {
		return err
	}
	it.blocks[block] = crc32.ChecksumIEEE(data)
	if err := w.writeAt(it, data, int64(len(it.zip.head))+off); err != nil {
		return err
	}
	if it.left.Add(-1) > 0 {
		return nil
	}
	for b, crc := range it.blocks {
		it.crc = joinCRC(it.crc, crc, min(size, it.zip.dataBytes-int64(b)*size))
	}
	it.blocks = nil
	if err := w.writeAt(it, it.zip.head, 0); err != nil {
		return err
	}
	return w.writeAt(it, it.zip.tail(it.crc), int64(len(it.zip.head))+it.zip.dataBytes)
}

func (w *blockWriter) writeAt(it *writeItem, b []byte, off int64) error {
	if _, err := it.file.f.WriteAt(b, it.offset+off); err != nil {
		return err
	}
	if w.progress != nil {
		w.progress(int64(len(b)))
	}
	return nil
}
