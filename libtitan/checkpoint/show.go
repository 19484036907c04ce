package checkpoint

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"titan/libtitan/exit"
)

// ShowOptions say what [Reader.Show] tells of an item.
type ShowOptions struct {
	ReadOptions
	Stats bool
	Slice string // "0:4,0:8": the elements to print; "" prints those of small tensors alone
}

const smallTensor = 64 // elements that are printed unasked

// Show writes what is known of an item, as "key: value" lines: its place in the files, statistics if asked, then the
// elements of a slice (a line for each row), or an object's value.
func (r *Reader) Show(ctx context.Context, w io.Writer, fqn string, o ShowOptions) error {
	it, ok := r.Item(fqn)
	if !ok {
		return r.wrap(fqn, fmt.Errorf("no such item%s", r.nearest(fqn)))
	}
	if it.Kind == KindBytes {
		return r.showObject(w, it)
	}
	region, err := parseSlice(o.Slice, it.Shape)
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "fqn: %s\nkind: tensor\ndtype: %s\nshape: %v\nbytes: %d\n", it.FQN, it.DType, it.Shape, it.Bytes)
	t := r.meta.tensors[fqn]
	for i, c := range it.Chunks {
		at := t.at[i]
		fmt.Fprintf(w, "chunk: offsets %v sizes %v in %s at %d+%d%s\n", c.Offsets, c.Sizes, at.path, at.offset, at.length, coded(at))
	}
	if o.Stats {
		if err := r.showStats(ctx, w, it, o.ReadOptions); err != nil {
			return err
		}
	}
	if n, _ := numel(it.Shape); o.Slice != "" || n <= smallTensor {
		return r.showValues(w, it, region)
	}
	return nil
}

func coded(at *location) string {
	if len(at.transforms) == 0 {
		return ""
	}
	return " coded " + strings.Join(at.transforms, ", ")
}

func (r *Reader) showObject(w io.Writer, it Item) error {
	v, err := r.Object(it.FQN)
	if err != nil {
		return err
	}
	at := r.meta.objects[it.FQN]
	_, err = fmt.Fprintf(w, "fqn: %s\nkind: bytes\nbytes: %d\nchunk: in %s at %d+%d%s\nvalue: %s\n",
		it.FQN, it.Bytes, at.path, at.offset, at.length, coded(at), Repr(v))
	return err
}

// nearest suggests names that contain the last parts of fqn, or that fqn is a part of.
func (r *Reader) nearest(fqn string) string {
	var names []string
	for _, it := range r.items {
		if plainName(it.FQN) == plainName(fqn) || strings.Contains(it.FQN, fqn) {
			names = append(names, it.FQN)
		}
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
func (r *Reader) showValues(w io.Writer, it Item, region Box) error {
	row := int64(1)
	if k := len(region.Sizes) - 1; k >= 0 {
		row = max(1, region.Sizes[k])
	}
	elem := it.DType.Size()
	for line := range pieces(region, row) {
		b := make([]byte, row*int64(elem))
		if err := r.ReadRegion(it.FQN, line.Offsets, line.Sizes, b); err != nil {
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

func (r *Reader) showStats(ctx context.Context, w io.Writer, it Item, o ReadOptions) error {
	if _, ok := number(it.DType, make([]byte, it.DType.Size())); !ok {
		return exit.Usage.Errorf("no statistics of %s: %s values are no real numbers", it.FQN, it.DType)
	}
	var s stats
	_, block := o.limits()
	err := r.Stream(it.FQN, block, func(b []byte) error {
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
