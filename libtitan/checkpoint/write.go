package checkpoint

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"titan/libtitan/manifest"
)

// WriteOptions say how a folder is written; the bytes do not depend on them.
type WriteOptions struct {
	MaxMemory int64             // for buffers, in bytes; 0 means 256 MiB
	Jobs      int               // goroutines that fill and write; 0 means one a CPU
	Compress  bool              // a DCP folder's items are zstd frames, which torch reads from 2.8 on
	Replace   bool              // an existing folder gives way, once the new one is whole
	Progress  func(bytes int64) // so many more bytes are written; called from several goroutines
}

// Write makes dir a DCP folder that holds s. The folder appears whole or not at all: on an error, a cancelled context
// or a full disk, what stood there before stands there still, and nothing else is left behind.
func Write(ctx context.Context, dir string, s State, o WriteOptions) error {
	if err := s.check(); err != nil {
		return err
	}
	plan, err := newWritePlan(&s)
	if err != nil {
		return err
	}
	st, err := newStage(dir, o.Replace)
	if err != nil {
		return err
	}
	var transforms []string
	if o.Compress {
		transforms = []string{zstdTransform}
	} else {
		err = plan.room(st.tmp)
	}
	if err == nil {
		err = plan.writeFiles(ctx, st.tmp, o)
	}
	if err == nil {
		err = plan.describe(ctx, st.tmp, transforms)
	}
	if err == nil {
		err = st.commit(ctx)
	}
	if err != nil {
		st.discard()
	}
	return err
}

// writePlan places every item before any byte moves.
type writePlan struct {
	state  *State
	files  []*outFile
	byRank map[int]*outFile
	items  []*writeItem // in the order of the state
}

// outFile is one .distcp file.
type outFile struct {
	name  string
	size  int64
	items []*writeItem // end to end
	f     *os.File

	streamed bool   // it was written from start to end, which gave
	crc      uint32 // the whole file's CRC
}

// writeItem is a chunk or an object, with its place in a file.
type writeItem struct {
	fqn    string
	chunk  *Chunk // nil for an object
	index  int    // of the chunk in its tensor
	file   *outFile
	offset int64
	length int64 // in the file
	zip    zipItem

	crc    uint32 // of the chunk's data
	blocks []uint32
	left   atomic.Int64 // blocks to be written
}

// newWritePlan lays the items end to end in their files, as PyTorch does: objects first, then tensors.
func newWritePlan(s *State) (*writePlan, error) {
	p := &writePlan{state: s, byRank: map[int]*outFile{}}
	for _, o := range s.Objects {
		zip, err := objectItem(o)
		if err != nil {
			return nil, fmt.Errorf("checkpoint: %s: %w", o.FQN, err)
		}
		p.place(&writeItem{fqn: o.FQN, zip: zip}, o.File)
	}
	zips := tensorZips{}
	for i := range s.Tensors {
		t := &s.Tensors[i]
		for j := range t.Chunks {
			c := &t.Chunks[j]
			zip, err := zips.get(t.DType, c.Sizes)
			if err != nil {
				return nil, fmt.Errorf("checkpoint: %s: %w", t.FQN, err)
			}
			p.place(&writeItem{fqn: t.FQN, chunk: c, index: j, zip: zip}, c.File)
		}
	}
	return p, nil
}

func objectItem(o Object) (zipItem, error) {
	if o.Zip != nil {
		return zipItem{head: o.Zip, made: true}, nil
	}
	pkl, err := objectPickle(o.Value)
	return newZipItem(pkl, -1), err
}

func (p *writePlan) place(it *writeItem, rank int) {
	f := p.byRank[rank]
	if f == nil {
		f = &outFile{name: fmt.Sprintf("__%d_0.distcp", rank)}
		p.byRank[rank] = f
		p.files = append(p.files, f)
	}
	it.file, it.offset, it.length = f, f.size, it.zip.size()
	f.size += it.length
	f.items = append(f.items, it)
	p.items = append(p.items, it)
}

// room refuses what the disk of dir has no place for, before a byte is written.
func (p *writePlan) room(dir string) error {
	var total int64
	for _, f := range p.files {
		total += f.size
	}
	if left := Left(dir); total > left {
		return fmt.Errorf("checkpoint: %s to write, %s left on the disk of %s: %w", manifest.HumanBytes(total), manifest.HumanBytes(left), filepath.Dir(dir), unix.ENOSPC)
	}
	return nil
}

// Left is the bytes that the disk of a folder has left; a file system that does not say is believed to have room for all.
func Left(dir string) int64 {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Blocks == 0 {
		return math.MaxInt64
	}
	return int64(fs.Bavail) * int64(fs.Bsize)
}

// writeFiles makes the data files in dir and flushes them.
func (p *writePlan) writeFiles(ctx context.Context, dir string, o WriteOptions) error {
	defer p.close()
	for _, f := range p.files {
		var err error
		if f.f, err = os.OpenFile(filepath.Join(dir, f.name), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o666); err != nil {
			return err
		}
	}
	fill := p.writeItems
	if o.Compress {
		fill = p.compressItems
	}
	if err := fill(ctx, o); err != nil {
		return err
	}
	return p.sync(ctx)
}

// describe adds what says where everything is, once the data files are there.
func (p *writePlan) describe(ctx context.Context, dir string, transforms []string) error {
	if err := p.writeMetadata(filepath.Join(dir, ".metadata"), transforms); err != nil {
		return err
	}
	return p.writeChecksums(ctx, dir)
}

func (p *writePlan) close() {
	for _, f := range p.files {
		if f.f != nil {
			f.f.Close() // synced before, where it matters
		}
	}
}

func (p *writePlan) sync(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for _, f := range p.files {
		g.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return f.f.Sync()
		})
	}
	return g.Wait()
}

func (p *writePlan) writeMetadata(path string, transforms []string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	err = writeMetadata(f, p.state, p.files, transforms)
	if err == nil {
		err = f.Sync()
	}
	if err2 := f.Close(); err == nil {
		err = err2
	}
	return err
}
