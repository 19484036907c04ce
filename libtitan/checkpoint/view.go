package checkpoint

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// view is a source as its target is to see it: some items left out, others renamed, cast, or with their rows in
// another order. Its methods that say so come first, then seal; after that it is a Source.
type view struct {
	Source
	moves  []*move
	items  []Item
	byName map[string]*move
	names  []func(string) string // renames, in order
	buffer sync.Pool             // of *[]byte: elements before a cast
}

// move is one item on its way.
type move struct {
	from, to Item
	row      func(int64) int64 // of the source, for a row of the target; nil: the same
	cast     caster
}

func newView(src Source) *view {
	v := &view{Source: src, buffer: sync.Pool{New: func() any { b := make([]byte, castBytes); return &b }}}
	for _, it := range src.Items() {
		v.moves = append(v.moves, &move{from: it, to: it})
	}
	return v
}

// keep leaves out what want does not want.
func (v *view) keep(want func(*move) bool) {
	v.moves = slices.DeleteFunc(v.moves, func(m *move) bool { return !want(m) })
}

// rename gives items other names; a path follows its name, and so do the names that an optimizer's groups list.
func (v *view) rename(name func(fqn string) string) (renamed int) {
	for _, m := range v.moves {
		if to := name(m.to.FQN); to != m.to.FQN {
			m.to.Path = renamePath(m.to.Path, to, name)
			m.to.FQN = to
			renamed++
		}
	}
	if renamed > 0 {
		v.names = append(v.names, name)
	}
	return renamed
}

// renamePath renames the parts of a nested place, so that they join to the name.
func renamePath(path []any, to string, name func(string) string) []any {
	var out []any
	old, now := "", "" // the parts so far, joined, each followed by a dot
	for _, part := range path {
		s, ok := part.(string)
		if !ok {
			s = fmt.Sprint(part)
		}
		joined := name(old+s) + "."
		if rest := strings.TrimPrefix(strings.TrimSuffix(joined, "."), now); ok && joined != now {
			out = append(out, rest)
		} else if !ok {
			out = append(out, part)
		}
		old, now = old+s+".", joined
	}
	if now != to+"." {
		return []any{to}
	}
	return out
}

// castFloats casts floating tensors to dt, but for the optimizer's, and tells how many and how many bytes they were.
func (v *view) castFloats(dt dtype.DType) (tensors int, bytes int64) {
	for _, m := range v.moves {
		to := castTo(m.from.DType, dt)
		if m.from.Kind != KindTensor || to == m.from.DType || !ofModel(m.from) {
			continue
		}
		m.cast = newCaster(m.from.DType, to)
		m.to.DType = to
		m.to.Bytes = m.from.Bytes / int64(m.from.DType.Size()) * int64(to.Size())
		tensors, bytes = tensors+1, bytes+m.from.Bytes
	}
	return tensors, bytes
}

// seal puts the items in order. Two that ended with one name are an error that names both sources.
func (v *view) seal() error {
	slices.SortStableFunc(v.moves, func(a, b *move) int { return cmp.Compare(a.to.FQN, b.to.FQN) })
	v.byName = map[string]*move{}
	for _, m := range v.moves {
		if other := v.byName[m.to.FQN]; other != nil {
			return exit.Input.Errorf("checkpoint %s: %s and %s would both be %s", v.Name(), other.from.FQN, m.from.FQN, m.to.FQN)
		}
		v.byName[m.to.FQN] = m
		v.items = append(v.items, m.to)
	}
	return nil
}

func (v *view) Items() []Item { return v.items }

// groupNames finds the lists of parameters' names that an unflattened optimizer keeps.
var groupNames = regexp.MustCompile(`(^|\.)param_groups\.\d+\.params$`)

// Object reads a value; where it lists parameters, they have their new names.
func (v *view) Object(fqn string) (any, error) {
	value, err := v.Source.Object(v.source(fqn))
	list, ok := value.([]any)
	if err != nil || !ok || v.names == nil || !groupNames.MatchString(fqn) {
		return value, err
	}
	for i, x := range list {
		if s, ok := x.(string); ok {
			for _, name := range v.names {
				s = name(s)
			}
			list[i] = s
		}
	}
	return list, nil
}

// ObjectZip is an object as it is stored, but for what Object changes.
func (v *view) ObjectZip(fqn string) ([]byte, error) {
	if v.names == nil || !groupNames.MatchString(fqn) {
		return v.Source.ObjectZip(v.source(fqn))
	}
	value, err := v.Object(fqn)
	if err != nil {
		return nil, err
	}
	return objectZip(value)
}

func (v *view) source(fqn string) string {
	if m := v.byName[fqn]; m != nil {
		return m.from.FQN
	}
	return fqn
}

// castBytes is how much is cast at a time: it stays in the cache.
const castBytes = 256 << 10

func (v *view) ReadRegion(fqn string, offsets, sizes []int64, dst []byte) error {
	m := v.byName[fqn]
	if m == nil {
		return exit.Input.Errorf("checkpoint %s: %s: no such tensor", v.Name(), fqn)
	}
	box := Box{offsets, sizes}
	if m.cast == nil {
		return v.readRows(m, box, dst)
	}
	buf := v.buffer.Get().(*[]byte)
	defer v.buffer.Put(buf)
	in, out := int64(m.from.DType.Size()), int64(m.to.DType.Size())
	for piece := range pieces(box, castBytes/in) {
		n, err := numel(piece.Sizes)
		if err != nil {
			return err
		}
		if err := v.readRows(m, piece, (*buf)[:n*in]); err != nil {
			return err
		}
		m.cast(dst[:n*out], (*buf)[:n*in])
		dst = dst[n*out:]
	}
	return nil
}

// readRows reads a box of the source, row by row where the rows have another order.
func (v *view) readRows(m *move, box Box, dst []byte) error {
	if m.row == nil {
		return v.Source.ReadRegion(m.from.FQN, box.Offsets, box.Sizes, dst)
	}
	offsets, sizes := slices.Clone(box.Offsets), slices.Clone(box.Sizes)
	sizes[0] = 1
	n, err := byteSize(sizes, m.from.DType.Size())
	if err != nil {
		return err
	}
	for i := range box.Sizes[0] {
		offsets[0] = m.row(box.Offsets[0] + i)
		if err := v.Source.ReadRegion(m.from.FQN, offsets, sizes, dst[i*n:(i+1)*n]); err != nil {
			return err
		}
	}
	return nil
}
