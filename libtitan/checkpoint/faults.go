package checkpoint

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// faults checks what the metadata promises: files that are there and long enough, tensors that are covered once.
func (r *Reader) faults() []error {
	tiling := make(chan []error)
	go func() { tiling <- r.tilingFaults() }()
	return append(r.fileFaults(), <-tiling...)
}

func (r *Reader) tilingFaults() []error {
	var faults []error
	for _, it := range r.items {
		if it.Kind != KindTensor {
			continue
		}
		if err := checkTiling(it.Shape, it.Chunks); err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", it.FQN, err))
		}
	}
	return faults
}

// span is an item's range in a file.
type span struct {
	fqn string
	at  *location
}

// spans lists every item's range by file, in order of offset.
func (r *Reader) spans() map[string][]span {
	out := map[string][]span{}
	for _, it := range r.items {
		if at := r.meta.objects[it.FQN]; at != nil {
			out[at.path] = append(out[at.path], span{it.FQN, at})
			continue
		}
		for _, at := range r.meta.tensors[it.FQN].at {
			out[at.path] = append(out[at.path], span{it.FQN, at})
		}
	}
	byOffset := func(a, b span) int { return cmp.Compare(a.at.offset, b.at.offset) }
	for _, s := range out {
		if !slices.IsSortedFunc(s, byOffset) {
			slices.SortStableFunc(s, byOffset)
		}
	}
	return out
}

func (r *Reader) fileFaults() []error {
	var faults []error
	spans := r.spans()
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		if err := r.fileFault(name, spans[name]); err != nil {
			faults = append(faults, err)
		}
	}
	return faults
}

func (r *Reader) fileFault(name string, spans []span) error {
	if err := checkName(name); err != nil {
		return fmt.Errorf("%s: %w", spans[0].fqn, err)
	}
	size, err := r.folder.size(name)
	if err != nil {
		return fmt.Errorf("%w: it holds %s and %d more items", err, spans[0].fqn, len(spans)-1)
	}
	need, first := int64(0), -1
	for i, s := range spans {
		if s.at.offset < 0 || s.at.length < 0 || s.at.length > maxFile-s.at.offset {
			return fmt.Errorf("%s: range %d+%d of file %s is no range", s.fqn, s.at.offset, s.at.length, name)
		}
		end := s.at.offset + s.at.length
		if end > size && first < 0 {
			first = i
		}
		need = max(need, end)
	}
	if first >= 0 {
		return fmt.Errorf("file %s is cut: %d bytes where %d are needed; the first item affected is %s", name, size, need, spans[first].fqn)
	}
	return nil
}

const maxFile = 1 << 60 // bytes; keeps sums of offsets and lengths from overflow
