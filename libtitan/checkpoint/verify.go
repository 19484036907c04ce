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

// Verified counts what [Verify] looked at.
type Verified struct {
	Items, Files int
	Bytes        int64 // of tensor data
	Faults       int
}

// Verify checks a folder against its metadata and gives each fault to emit, one line each: files missing, cut or left
// over, ranges that overlap, chunks that leave gaps or overlap, items that do not hold what the metadata says. The
// tensors' data are not read. A folder whose metadata cannot be read is an error instead.
func Verify(ctx context.Context, dir string, o ReadOptions, emit func(fault string) error) (Verified, error) {
	r, err := open(dir)
	if err != nil {
		return Verified{}, err
	}
	defer r.Close()
	spans := r.spans()
	v := Verified{Items: len(r.items), Files: len(spans), Bytes: r.TensorBytes()}
	tell := func(faults ...error) error {
		for _, f := range faults {
			v.Faults++
			if err := emit(f.Error()); err != nil {
				return err
			}
		}
		return nil
	}
	faults, bad := r.badFiles(spans)
	stale, err := staleFiles(dir, spans)
	if err != nil {
		return v, err
	}
	if err := tell(slices.Concat(faults, stale, r.tilingFaults())...); err != nil {
		return v, err
	}
	return v, inOrder(ctx, o, r.items, func(ctx context.Context, it Item, _ int64) ([]error, error) {
		return r.itemFaults(it, bad), ctx.Err()
	}, func(it Item, faults []error) error {
		report(o.Progress, int(it.Bytes))
		return tell(faults...)
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

// itemFaults opens each chunk of an item, but for those in files with faults of their own.
func (r *Reader) itemFaults(it Item, bad map[string]bool) (faults []error) {
	check := func(at *location, open func() error) {
		if bad[at.path] {
			return
		}
		if err := open(); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", it.FQN, err))
		}
	}
	if it.Kind == KindBytes {
		check(r.meta.objects[it.FQN], func() error {
			z, err := r.objectZip(it.FQN)
			if err == nil {
				_, err = z.read("data.pkl", maxPickle)
			}
			return err
		})
		return faults
	}
	t := r.meta.tensors[it.FQN]
	for i, at := range t.at {
		check(at, func() error {
			_, err := r.tensorItem(t, i)
			return err
		})
	}
	return faults
}
