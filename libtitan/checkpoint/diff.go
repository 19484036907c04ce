package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// DiffOptions say when two elements differ.
type DiffOptions struct {
	ReadOptions
	Glob      string // compares only the names of a that it fits, and their partners
	ModelOnly bool   // leaves the optimizer, the scheduler, the data's place and the trainer's state out of both
	// An element a equals b if |a-b| <= Atol + Rtol·|b| and both are finite, or both are NaN. With both 0 (the default) the bytes decide.
	Rtol, Atol float64
}

// Difference is one item that differs.
type Difference struct {
	FQN    string
	Why    string         // in words, one line
	DTypes [2]dtype.DType // where they alone differ, so that no value was compared
}

// Diff compares two checkpoints item by item, whatever their layouts, and returns the differences in order of name.
// Names that differ only by wrapper parts or by torchtitan's spellings are partners. compared is how many items were.
func Diff(ctx context.Context, a, b Source, o DiffOptions) (found []Difference, compared int, err error) {
	items, err := matching(a, o.Glob)
	if err != nil {
		return nil, 0, err
	}
	if o.ModelOnly {
		if items = modelItems(items); len(items) == 0 {
			return nil, 0, exit.Input.Errorf("checkpoint %s: none of what is compared is the model's", a.Name())
		}
	}
	if err := namings(a, b); err != nil && o.Glob == "" {
		return nil, 0, err
	}
	partner, rest := partners(items, b)
	if err := strangers(a, b, items, partner, rest); err != nil {
		return nil, 0, err
	}
	err = inOrder(ctx, o.ReadOptions, items, func(ctx context.Context, it Item, block int64) (Difference, error) {
		other, ok := findItem(b, partner[it.FQN])
		if !ok {
			return Difference{Why: "only in the first"}, nil
		}
		d := differ{ctx: ctx, a: a, b: b, o: &o, block: block}
		return d.compare(it, other)
	}, func(it Item, d Difference) error {
		if d.FQN = it.FQN; d.Why != "" {
			found = append(found, d)
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	if o.Glob == "" {
		for _, fqn := range rest {
			if it, _ := findItem(b, fqn); o.ModelOnly && !ofModel(it) {
				continue
			}
			found = append(found, Difference{FQN: fqn, Why: "only in the second"})
		}
	}
	slices.SortFunc(found, func(x, y Difference) int { return strings.Compare(x.FQN, y.FQN) })
	return found, len(items), nil
}

// modelItems are those of items that are the model's.
func modelItems(items []Item) []Item {
	return slices.DeleteFunc(slices.Clone(items), func(it Item) bool { return !ofModel(it) })
}

// partners finds for each item the name in b: the same, else one with the same plain name. rest is what b has besides.
func partners(items []Item, b Source) (partner map[string]string, rest []string) {
	exact, plain := map[string]bool{}, map[string]string{}
	for _, it := range items {
		exact[it.FQN] = true
	}
	for _, it := range b.Items() {
		if !exact[it.FQN] {
			plain[plainName(it.FQN)] = it.FQN
		}
	}
	partner, taken := map[string]string{}, map[string]bool{}
	for _, it := range items {
		name := it.FQN
		if _, ok := findItem(b, name); !ok {
			if name = plain[plainName(name)]; name == "" {
				continue
			}
		}
		partner[it.FQN], taken[name] = name, true
	}
	for _, it := range b.Items() {
		if !taken[it.FQN] {
			rest = append(rest, it.FQN)
		}
	}
	return partner, rest
}

// namings is the error of a checkpoint with Hugging Face's names and one without: the rows of their queries and keys are
// in another order too.
func namings(a, b Source) error {
	named, plain := a, b
	if slices.ContainsFunc(b.Items(), theirs) {
		named, plain = b, a
	}
	if !slices.ContainsFunc(named.Items(), theirs) || slices.ContainsFunc(plain.Items(), theirs) {
		return nil
	}
	return exit.No.Errorf("%s has Hugging Face's names and order of rows, %s has not: compare what ckpt-shard convert %s OUT --to dcp writes", named.Name(), plain.Name(), shellWord(named.Name()))
}

// strangers is the error of two checkpoints without a name in common: they are not of one model, or not of one naming.
func strangers(a, b Source, items []Item, partner map[string]string, rest []string) error {
	if len(partner) > 0 || len(items) == 0 || len(rest) == 0 {
		return nil
	}
	names := make([]string, len(items))
	for i, it := range items {
		names[i] = it.FQN
	}
	return exit.No.Errorf("%s and %s have no name in common: the first has %s, the second %s", a.Name(), b.Name(), first(3, names), first(3, rest))
}

// differ compares one item.
type differ struct {
	ctx   context.Context
	a, b  Source
	o     *DiffOptions
	block int64

	index int64 // of the first element of the current piece
	found mismatch
}

// mismatch gathers the elements that differ.
type mismatch struct {
	count    int64
	first    int64 // flat index
	a, b     string
	maxULP   uint64
	maxAbs   float64
	nan      bool // a NaN against a number
	nans     bool // NaNs of other bits
	numbers  bool // numbers on both sides
	signs    bool // numbers of other signs, between which a count of values says nothing
	elements int64
}

// compare says why two items differ, if they do.
func (d *differ) compare(x, y Item) (out Difference, err error) {
	switch {
	case x.Kind != y.Kind:
		out.Why = fmt.Sprintf("kind %s and %s", x.Kind, y.Kind)
	case x.Kind == KindBytes:
		out.Why, err = d.objects(x.FQN, y.FQN)
	case !slices.Equal(x.Shape, y.Shape):
		out.Why = fmt.Sprintf("shape %v and %v", x.Shape, y.Shape)
	case x.DType != y.DType:
		out.Why, out.DTypes = fmt.Sprintf("dtype %s and %s", x.DType, y.DType), [2]dtype.DType{x.DType, y.DType}
	default:
		out.Why, err = d.tensors(x, y)
	}
	return out, err
}

func (d *differ) objects(x, y string) (string, error) {
	p, err := dataPickle(d.a, x)
	if err != nil {
		return "", err
	}
	q, err := dataPickle(d.b, y)
	if err != nil || p == q {
		return "", err
	}
	v, err1 := d.a.Object(x)
	w, err2 := d.b.Object(y)
	if err1 != nil || err2 != nil {
		return "objects of a kind that is not read here, with other bytes", nil
	}
	if s, t := Repr(v), Repr(w); s != t {
		return fmt.Sprintf("%s and %s", shorten(s), shorten(t)), nil
	}
	return "", nil
}

func shorten(s string) string {
	if r := []rune(s); len(r) > 100 {
		return string(r[:97]) + "..."
	}
	return s
}

func (d *differ) tensors(x, y Item) (string, error) {
	elem := int64(x.DType.Size())
	var buf []byte
	for piece := range pieces(whole(x.Shape), max(1, d.block/2/elem)) {
		if err := d.ctx.Err(); err != nil {
			return "", err
		}
		n, err := byteSize(piece.Sizes, int(elem))
		if err != nil {
			return "", err
		}
		if int64(len(buf)) < 2*n {
			buf = make([]byte, 2*n)
		}
		p, q := buf[:n], buf[n:2*n]
		if err := d.a.ReadRegion(x.FQN, piece.Offsets, piece.Sizes, p); err != nil {
			return "", err
		}
		if err := d.b.ReadRegion(y.FQN, piece.Offsets, piece.Sizes, q); err != nil {
			return "", err
		}
		if !bytes.Equal(p, q) {
			d.piece(x.DType, p, q)
		}
		d.index += n / elem
		report(d.o.Progress, int(n))
	}
	d.found.elements = d.index
	return d.found.describe(x.DType, x.Shape), nil
}

// piece compares two runs of elements whose bytes differ somewhere.
func (d *differ) piece(dt dtype.DType, p, q []byte) {
	size := dt.Size()
	for i := 0; i < len(p); i += size {
		a, b := p[i:i+size], q[i:i+size]
		if bytes.Equal(a, b) {
			continue
		}
		x, ok := number(dt, a)
		y, _ := number(dt, b)
		gap := distance(dt, a, b, x, y)
		if ok && d.close(x, y, gap) {
			continue
		}
		m := &d.found
		if m.count == 0 {
			m.first, m.a, m.b = d.index+int64(i/size), formatElement(dt, a), formatElement(dt, b)
		}
		m.count++
		if x != x || y != y {
			m.nans = m.nans || x != x && y != y
			m.nan = m.nan || x == x || y == y
			continue
		}
		m.numbers = true
		m.signs = m.signs || math.Signbit(x) != math.Signbit(y)
		m.maxULP = max(m.maxULP, ulps(dt, a, b))
		m.maxAbs = max(m.maxAbs, gap)
	}
}

// close reports whether numbers whose bytes differ, and that lie gap apart, count as equal. No share of an infinity is
// a tolerance.
func (d *differ) close(x, y, gap float64) bool {
	switch {
	case d.o.Rtol == 0 && d.o.Atol == 0, math.IsInf(x, 0), math.IsInf(y, 0):
		return false
	case x != x && y != y:
		return true
	}
	return gap <= d.o.Atol+d.o.Rtol*math.Abs(y)
}

func (m *mismatch) describe(dt dtype.DType, shape []int64) string {
	if m.count == 0 {
		return ""
	}
	s := fmt.Sprintf("%d of %d elements differ, first at %v: %s and %s", m.count, m.elements, unflatten(m.first, shape), m.a, m.b)
	if m.numbers {
		s += fmt.Sprintf("; at most %.3g apart", m.maxAbs)
		if dt.IsFloat() && !m.signs {
			s += fmt.Sprintf(", %d ulp", m.maxULP)
		}
	}
	if m.nan {
		s += "; NaN against a number"
	}
	if m.nans {
		s += "; NaNs of other bits"
	}
	return s
}

// unflatten is the index of an element by its place in row-major order.
func unflatten(i int64, shape []int64) []int64 {
	at := make([]int64, len(shape))
	for d := len(shape) - 1; d >= 0; d-- {
		at[d], i = i%shape[d], i/shape[d]
	}
	return at
}
