package checkpoint

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// ShowOptions say what [Show] tells of an item.
type ShowOptions struct {
	ReadOptions
	Stats bool
	Slice string // "0:4,0:8": the elements to print; "" prints those of small tensors alone
}

const smallTensor = 64 // elements that are printed unasked

// Show writes what is known of an item, as "key: value" lines: its place in the files, statistics if asked, then the
// elements of a slice (a line for each row), or an object's value.
func Show(ctx context.Context, w io.Writer, src Source, fqn string, o ShowOptions) error {
	it, ok := findItem(src, fqn)
	if !ok {
		return exit.Input.Errorf("checkpoint %s: %s: no such item%s", src.Name(), fqn, nearest(src, fqn))
	}
	if it.Kind == KindBytes {
		return showObject(w, src, it)
	}
	region, err := parseSlice(o.Slice, it.Shape)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "fqn: %s\nkind: tensor\ndtype: %s\nshape: %v\nbytes: %d\n", LineName(it.FQN), it.DType, it.Shape, it.Bytes)
	for i, c := range it.Chunks {
		fmt.Fprintf(w, "chunk: offsets %v sizes %v in %s\n", c.Offsets, c.Sizes, where(src, it, i))
	}
	if o.Stats {
		if err := showStats(ctx, w, src, it, o.ReadOptions); err != nil {
			return err
		}
	}
	if n, _ := numel(it.Shape); o.Slice != "" || n <= smallTensor {
		return showValues(w, src, it, region)
	}
	return nil
}

// findItem looks an item up by name.
func findItem(src Source, fqn string) (Item, bool) {
	items := src.Items()
	i, ok := slices.BinarySearchFunc(items, fqn, func(it Item, name string) int { return strings.Compare(it.FQN, name) })
	if !ok {
		return Item{}, false
	}
	return items[i], true
}

// where says in which file and where in it a chunk of a tensor, or an object, lies.
func where(src Source, it Item, chunk int) string {
	switch src := src.(type) {
	case *Reader:
		at := src.meta.objects[it.FQN]
		if it.Kind == KindTensor {
			at = src.meta.tensors[it.FQN].at[chunk]
		}
		return fmt.Sprintf("%s at %d+%d%s", at.path, at.offset, at.length, coded(at))
	case *safeSource:
		p := src.parts[it.FQN][chunk]
		f := src.files[p.file]
		return fmt.Sprintf("%s at %d+%d", filepath.Base(f.path), f.data+p.at.Begin, p.at.End-p.at.Begin)
	case *torchSource:
		if t, ok := src.values[it.FQN].(*tensorItem); ok {
			return fmt.Sprintf("%s at %d+%d: offset %d, strides %v", filepath.Base(src.name), t.storage.at, t.storage.bytes, t.offset, t.strides)
		}
	}
	return filepath.Base(src.Name())
}

func coded(at *location) string {
	if len(at.transforms) == 0 {
		return ""
	}
	return " coded " + strings.Join(at.transforms, ", ")
}

func showObject(w io.Writer, src Source, it Item) error {
	v, err := src.Object(it.FQN)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "fqn: %s\nkind: bytes\nbytes: %d\nchunk: in %s\nvalue: %s\n", LineName(it.FQN), it.Bytes, where(src, it, 0), Repr(v))
	return err
}

// nearest suggests names that contain the last parts of fqn, or that fqn is a part of, else the one it is a slip of.
func nearest(src Source, fqn string) string {
	var names, all []string
	for _, it := range src.Items() {
		all = append(all, it.FQN)
		if plainName(it.FQN) == plainName(fqn) || strings.Contains(it.FQN, fqn) {
			names = append(names, it.FQN)
		}
	}
	if slip := manifest.Nearest(fqn, all); len(names) == 0 && slip != "" {
		names = []string{slip}
	}
	if len(names) == 0 {
		return ""
	}
	return ": did you mean " + first(3, names) + "?"
}

// parseSlice reads "0:4,0:8", "3" or ":" for each dim; dims not named are whole.
func parseSlice(s string, shape []int64) (Box, error) {
	b := Box{make([]int64, len(shape)), append([]int64{}, shape...)}
	if s == "" {
		return b, nil
	}
	parts := strings.Split(s, ",")
	if len(parts) > len(shape) {
		return b, exit.Usage.Errorf("slice %q has %d dims where the tensor has %d", s, len(parts), len(shape))
	}
	for d, part := range parts {
		lo, hi, isRange := strings.Cut(strings.TrimSpace(part), ":")
		from, err1 := sliceBound(lo, 0)
		to, err2 := sliceBound(hi, shape[d])
		if !isRange {
			to = from + 1
		}
		if err1 != nil || err2 != nil || !isRange && lo == "" || from < 0 || to < from || to > shape[d] {
			return b, exit.Usage.Errorf("slice %q: %q is no range within a dim of %d (write 0:4,0:8)", s, part, shape[d])
		}
		b.Offsets[d], b.Sizes[d] = from, to-from
	}
	return b, nil
}

func sliceBound(s string, absent int64) (int64, error) {
	if s == "" {
		return absent, nil
	}
	return strconv.ParseInt(s, 10, 64)
}

// showValues prints a region, a line for each run of the last dim.
func showValues(w io.Writer, src Source, it Item, region Box) error {
	row := int64(1)
	if k := len(region.Sizes) - 1; k >= 0 {
		row = max(1, region.Sizes[k])
	}
	elem := it.DType.Size()
	for line := range pieces(region, row) {
		b := make([]byte, row*int64(elem))
		if err := src.ReadRegion(it.FQN, line.Offsets, line.Sizes, b); err != nil {
			return err
		}
		words := make([]string, row)
		for i := range words {
			words[i] = formatElement(it.DType, b[i*elem:(i+1)*elem])
		}
		if _, err := fmt.Fprintln(w, strings.Join(words, " ")); err != nil {
			return err
		}
	}
	return nil
}

// stats are of the finite elements, but for the counts.
type stats struct {
	n, finite, nan, inf, zero int64
	min, max, mean, m2        float64 // Welford's running mean and sum of squared distances
}

func (s *stats) add(x float64) {
	s.n++
	switch {
	case math.IsNaN(x):
		s.nan++
		return
	case math.IsInf(x, 0):
		s.inf++
		return
	case x == 0:
		s.zero++
	}
	if s.finite == 0 {
		s.min, s.max = x, x
	}
	s.finite++
	s.min, s.max = min(s.min, x), max(s.max, x)
	delta := x - s.mean
	s.mean += delta / float64(s.finite)
	s.m2 += delta * (x - s.mean)
}

func showStats(ctx context.Context, w io.Writer, src Source, it Item, o ReadOptions) error {
	if _, ok := number(it.DType, make([]byte, it.DType.Size())); !ok {
		return exit.Usage.Errorf("no statistics of %s: %s values are no real numbers", it.FQN, it.DType)
	}
	var s stats
	_, block := o.limits()
	err := stream(src, it, block, func(b []byte) error {
		for i := 0; i < len(b); i += it.DType.Size() {
			x, _ := number(it.DType, b[i:i+it.DType.Size()])
			s.add(x)
		}
		report(o.Progress, len(b))
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "elements: %d\nnan: %d\ninf: %d\nzero: %d\n", s.n, s.nan, s.inf, s.zero)
	if s.finite > 0 {
		_, err = fmt.Fprintf(w, "min: %.9g\nmax: %.9g\nmean: %.9g\nstd: %.9g\n", s.min, s.max, s.mean, math.Sqrt(s.m2/float64(s.finite)))
	}
	return err
}
