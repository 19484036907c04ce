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
	v := Verified{Items: len(r.items), Bytes: r.TensorBytes()}
	fault := func(err error) error {
		v.Faults++
		return emit(err.Error())
	}
	spans := r.spans()
	v.Files = len(spans)
	bad := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		err := r.fileFault(name, spans[name])
		if err == nil {
			err = overlapFault(name, spans[name])
		}
		if err != nil {
			bad[name] = true
			if err := fault(err); err != nil {
				return v, err
			}
		}
	}
	stale, err := staleFiles(dir, spans)
	if err != nil {
		return v, err
	}
	for _, err := range append(stale, r.tilingFaults()...) {
		if err := fault(err); err != nil {
			return v, err
		}
	}
	return v, inOrder(ctx, o, r.items, func(ctx context.Context, it Item, _ int64) ([]error, error) {
		return r.itemFaults(it, bad), ctx.Err()
	}, func(it Item, faults []error) error {
		report(o.Progress, int(it.Bytes))
		for _, err := range faults {
			if err := fault(fmt.Errorf("%s: %w", it.FQN, err)); err != nil {
				return err
			}
		}
		return nil
	})
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
func (r *Reader) itemFaults(it Item, bad map[string]bool) []error {
	var faults []error
	if it.Kind == KindBytes {
		if bad[r.meta.objects[it.FQN].path] {
			return nil
		}
		if z, err := r.objectZip(it.FQN); err != nil {
			faults = append(faults, err)
		} else if _, err := z.read("data.pkl", maxPickle); err != nil {
			faults = append(faults, err)
		}
		return faults
	}
	t := r.meta.tensors[it.FQN]
	for i := range t.chunks {
		if bad[t.at[i].path] {
			continue
		}
		if _, err := r.tensorItem(t, i); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}
