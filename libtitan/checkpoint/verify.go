package checkpoint

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// VerifyOptions say how closely [Verify] looks.
type VerifyOptions struct {
	ReadOptions
	Deep  bool                                 // read every byte and hold it to the checksums that there are
	Begin func(totalBytes int64) func(n int64) // starts a progress bar; may be nil
}

// Verified counts what [Verify] looked at.
type Verified struct {
	Items, Files int
	Bytes        int64 // of tensor data
	Faults       int
	Held         string // what Deep held the bytes to
}

// Verify checks a checkpoint and gives each fault to emit, one line each. Of a DCP folder: files missing, cut or left
// over, ranges that overlap, chunks that leave gaps or overlap, items that do not hold what the metadata says. A
// checkpoint that cannot be opened, other formats' faults among them, is an error instead.
func Verify(ctx context.Context, path string, o VerifyOptions, emit func(fault string) error) (Verified, error) {
	v := verifier{ctx: ctx, o: o, emit: emit}
	if !isDCP(path) {
		src, err := OpenSource(path)
		if err != nil {
			return v.Verified, err
		}
		defer src.Close()
		return v.Verified, v.source(src)
	}
	r, err := open(path)
	if err != nil {
		return v.Verified, err
	}
	defer r.Close()
	err = v.folder(r)
	return v.Verified, err
}

// verifier is one run of [Verify].
type verifier struct {
	Verified
	ctx  context.Context
	o    VerifyOptions
	emit func(string) error
}

func (v *verifier) tell(faults ...error) error {
	for _, f := range faults {
		v.Faults++
		if err := v.emit(LineName(f.Error())); err != nil {
			return err
		}
	}
	return nil
}

func (v *verifier) begin(total int64) {
	if v.o.Begin != nil {
		v.o.Progress = v.o.Begin(total)
	}
}

// folder verifies a DCP folder.
func (v *verifier) folder(r *Reader) error {
	spans := r.spans()
	v.Items, v.Files, v.Bytes = len(r.items), len(spans), TensorBytes(r)
	faults, bad := r.badFiles(spans)
	stale, err := staleFiles(r.folder.dir, spans)
	if err != nil {
		return err
	}
	if err := v.tell(slices.Concat(faults, stale, r.tilingFaults())...); err != nil {
		return err
	}
	sound := map[string]bool{} // files whose every byte is known to be right
	if v.o.Deep {
		if sound, err = v.checksums(r.folder.dir, bad); err != nil {
			return err
		}
	} else {
		v.begin(v.Bytes)
	}
	return inOrder(v.ctx, v.o.ReadOptions, r.items, func(ctx context.Context, it Item, block int64) ([]error, error) {
		c := itemCheck{ctx: ctx, r: r, it: it, bad: bad}
		if v.o.Deep {
			c.buf, c.sound = make([]byte, block), sound
		}
		err := c.run()
		return c.faults, err
	}, func(it Item, faults []error) error {
		if !v.o.Deep {
			report(v.o.Progress, int(it.Bytes))
		}
		return v.tell(faults...)
	})
}

// badFiles checks the data files and the ranges in them.
func (r *Reader) badFiles(spans map[string][]span) (faults []error, bad map[string]bool) {
	bad = map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		err := r.fileFault(name, spans[name])
		if err == nil {
			err = overlapFault(name, spans[name])
		}
		if err != nil {
			faults, bad[name] = append(faults, err), true
		}
	}
	return faults, bad
}

// overlapFault finds two items of a file that share bytes. Spans are in order of offset.
func overlapFault(name string, spans []span) error {
	for i := 1; i < len(spans); i++ {
		if a, b := spans[i-1], spans[i]; a.at.offset+a.at.length > b.at.offset {
			return fmt.Errorf("file %s: %s and %s overlap at byte %d", name, a.fqn, b.fqn, b.at.offset)
		}
	}
	return nil
}

// staleFiles lists data files that no item names, and unfinished metadata: leftovers of another save.
func staleFiles(dir string, spans map[string][]span) ([]error, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []error
	for _, e := range entries {
		name := e.Name()
		if filepath.Ext(name) == ".distcp" && spans[name] == nil || strings.HasSuffix(name, ".metadata.tmp") {
			out = append(out, fmt.Errorf("file %s is stale: no item lies in it", name))
		}
	}
	return out, nil
}

// itemCheck opens each chunk of an item, but for those in files with faults of their own. With a buffer it reads them
// whole too, but for those in files that are sound.
type itemCheck struct {
	ctx        context.Context
	r          *Reader
	it         Item
	bad, sound map[string]bool
	buf        []byte
	faults     []error
}

// run gathers the faults; an error ends the whole verb.
func (c *itemCheck) run() error {
	if c.it.Kind == KindBytes {
		at := c.r.meta.objects[c.it.FQN]
		return c.chunk(at, maxObject, func() error {
			z, err := c.r.objectZip(c.it.FQN)
			if err == nil {
				_, err = z.read("data.pkl", maxPickle)
			}
			return err
		})
	}
	t := c.r.meta.tensors[c.it.FQN]
	for i, at := range t.at {
		err := c.chunk(at, expandLimit(t, i), func() error {
			if _, err := c.r.parseTensorItem(t, i); err != nil {
				return fmt.Errorf("chunk at %v in %s: %w", t.chunks[i].Offsets, at.path, err)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *itemCheck) chunk(at *location, limit int64, open func() error) error {
	if c.bad[at.path] {
		return nil
	}
	err := open()
	if err == nil && c.buf != nil && !c.sound[at.path] {
		err = c.read(at, limit)
	}
	if err != nil {
		c.faults = append(c.faults, fmt.Errorf("%s: %w", c.it.FQN, err))
	}
	return c.ctx.Err()
}

// stale lists safetensors files of a folder that its index does not name.
func (s *safeSource) stale() ([]error, error) {
	if info, err := os.Stat(s.name); err != nil || !info.IsDir() {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(globEscape(s.name), "*.safetensors"))
	var out []error
	for _, p := range paths {
		if !slices.ContainsFunc(s.files, func(f *safetensorsFile) bool { return f.path == p }) {
			out = append(out, fmt.Errorf("file %s is stale: the index does not name it", filepath.Base(p)))
		}
	}
	return out, err
}
