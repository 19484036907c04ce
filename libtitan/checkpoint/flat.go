package checkpoint

// fillBox is the Fill of a box of a tensor of a source.
func fillBox(src Source, fqn string, box Box, elem int64) Fill {
	return func(dst []byte, off int64) error {
		at := off / elem
		for piece := range flatBoxes(box, at, at+int64(len(dst))/elem) {
			n, err := byteSize(piece.Sizes, int(elem))
			if err != nil {
				return err
			}
			if err := src.ReadRegion(fqn, piece.Offsets, piece.Sizes, dst[:n]); err != nil {
				return err
			}
			dst = dst[n:]
		}
		return nil
	}
}

// flatBoxes cuts elements [from, to) of a box, counted in row-major order, into boxes in that order: at most two for
// each dim.
func flatBoxes(box Box, from, to int64) func(yield func(Box) bool) {
	return func(yield func(Box) bool) {
		cut := flatCut{box: box, yield: yield}
		cut.run(nil, from, to)
	}
}

type flatCut struct {
	box   Box
	yield func(Box) bool
}

// run yields elements [from, to) of what remains of the box when its first len(at) dims stand at those places.
func (c *flatCut) run(at []int64, from, to int64) bool {
	d := len(at)
	if from >= to {
		return true
	}
	if d == len(c.box.Sizes) {
		return c.emit(at, 0, 1)
	}
	inner, _ := numel(c.box.Sizes[d+1:]) // of a box that was checked
	first, last := from/inner, to/inner  // rows first+1.. to last-1 are whole, first if it starts at from
	if first*inner == from && last > first {
		return c.emit(at, first, last) && c.run(c.in(at, last), 0, to-last*inner)
	}
	end := min(to, (first+1)*inner)
	if !c.run(c.in(at, first), from-first*inner, end-first*inner) {
		return false
	}
	return c.run(at, end, to)
}

func (c *flatCut) in(at []int64, i int64) []int64 { return append(at[:len(at):len(at)], i) }

// emit yields rows [from, to) of dim len(at), whole.
func (c *flatCut) emit(at []int64, from, to int64) bool {
	b := Box{append([]int64{}, c.box.Offsets...), append([]int64{}, c.box.Sizes...)}
	for d, i := range at {
		b.Offsets[d] += i
		b.Sizes[d] = 1
	}
	if d := len(at); d < len(b.Sizes) {
		b.Offsets[d] += from
		b.Sizes[d] = to - from
	}
	return c.yield(b)
}
