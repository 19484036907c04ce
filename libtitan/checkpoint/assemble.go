package checkpoint

import (
	"cmp"
	"slices"

	"titan/libtitan/exit"
)

// assemble is the state that a DCP folder is to hold of a source: cut by layout, or as the source is cut where layout is
// nil. Bytes are pulled from the source when the folder is written.
func assemble(src Source, layout *Layout) (State, error) {
	a := assembler{src: src, load: map[int]int64{}, place: asStored}
	if layout != nil {
		if err := layout.check(src.Items()); err != nil {
			return State{}, exit.Input.Errorf("checkpoint %s: %w", src.Name(), err)
		}
		a.place = layout.place
		for rank := range layout.World() {
			a.ranks = append(a.ranks, rank)
		}
	}
	for _, it := range src.Items() {
		if err := a.add(it); err != nil {
			return State{}, err
		}
	}
	return a.state, nil
}

// nested is the state that a file by torch.save is to hold of a source: whole tensors, and objects by their values.
func nested(src Source) (State, error) {
	a := assembler{src: src, load: map[int]int64{}, values: true, place: func(it Item) []placed { return []placed{{whole(it.Shape), []int{0}}} }}
	for _, it := range src.Items() {
		if err := a.add(it); err != nil {
			return State{}, err
		}
	}
	return a.state, nil
}

// assembler gathers a state. Of the ranks that hold a piece, the one with the fewest bytes so far writes it, as PyTorch
// has it.
type assembler struct {
	src    Source
	state  State
	values bool // objects are decoded, not copied as they are stored
	place  func(Item) []placed
	ranks  []int         // all; nil: objects stay in the file where they are
	load   map[int]int64 // bytes so far, by rank
}

func (a *assembler) add(it Item) error {
	if it.Kind == KindBytes {
		o := Object{FQN: it.FQN, Path: it.Path}
		var err error
		if a.values {
			o.Value, err = a.src.Object(it.FQN)
		} else {
			o.Zip, err = a.src.ObjectZip(it.FQN)
		}
		if err != nil {
			return err
		}
		ranks := a.ranks
		if ranks == nil {
			ranks = []int{it.file(0)}
		}
		o.File = a.writer(ranks, 1)
		a.state.Objects = append(a.state.Objects, o)
		return nil
	}
	t := Tensor{FQN: it.FQN, Path: it.Path, DType: it.DType, Shape: it.Shape}
	elem := it.DType.Size()
	for _, p := range a.place(it) {
		n, err := byteSize(p.box.Sizes, elem)
		if err != nil {
			return err
		}
		t.Chunks = append(t.Chunks, Chunk{p.box.Offsets, p.box.Sizes, a.writer(p.ranks, n), fillBox(a.src, it.FQN, p.box, int64(elem))})
	}
	a.state.Tensors = append(a.state.Tensors, t)
	return nil
}

func (a *assembler) writer(ranks []int, bytes int64) int {
	rank := slices.MinFunc(ranks, func(x, y int) int { return cmp.Compare(a.load[x], a.load[y]) })
	a.load[rank] += bytes
	return rank
}

// asStored is a tensor's own chunks and files, without the empty ones.
func asStored(it Item) []placed {
	out := make([]placed, 0, len(it.Chunks))
	for i, box := range it.Chunks {
		if n, _ := numel(box.Sizes); n > 0 {
			out = append(out, placed{box, []int{it.file(i)}})
		}
	}
	if len(out) == 0 {
		return []placed{{whole(it.Shape), []int{it.file(0)}}}
	}
	return out
}

// file is which of the checkpoint's files holds a chunk.
func (it Item) file(chunk int) int {
	if chunk < len(it.Files) {
		return it.Files[chunk]
	}
	return 0
}
