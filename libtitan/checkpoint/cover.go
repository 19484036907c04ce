package checkpoint

import (
	"cmp"
	"fmt"
	"slices"
)

// checkTiling checks that boxes lie inside shape, do not overlap, and cover it whole. Empty boxes are legal: an
// uneven shard leaves the last ranks with nothing.
func checkTiling(shape []int64, boxes []Box) error {
	covered := int64(0)
	solid := make([]Box, 0, len(boxes))
	for _, b := range boxes {
		if err := within(b.Offsets, b.Sizes, shape); err != nil {
			return err
		}
		n, err := numel(b.Sizes)
		if err != nil {
			return err
		}
		if n > 0 {
			covered += n
			solid = append(solid, b)
		}
	}
	if a, b, found := overlapping(solid, len(shape)); found {
		return fmt.Errorf("the chunks at %v of %v and at %v of %v overlap", a.Offsets, a.Sizes, b.Offsets, b.Sizes)
	}
	total, err := numel(shape)
	if err != nil {
		return err
	}
	if covered != total {
		return fmt.Errorf("the chunks cover %d of %d elements", covered, total)
	}
	return nil
}

// overlapping finds two boxes that share an element. Where a plane separates boxes, the sides are looked at apart, so
// that the layouts of real checkpoints cost n log n.
func overlapping(boxes []Box, dims int) (a, b Box, found bool) {
	for axis := range dims {
		slices.SortFunc(boxes, func(x, y Box) int { return cmp.Compare(x.Offsets[axis], y.Offsets[axis]) })
		end := firstCluster(boxes, axis)
		if end == len(boxes) {
			continue
		}
		for len(boxes) > 0 {
			if a, b, found = overlapping(boxes[:end], dims); found {
				return a, b, true
			}
			boxes = boxes[end:]
			end = firstCluster(boxes, axis)
		}
		return a, b, false
	}
	for i, x := range boxes {
		for _, y := range boxes[:i] {
			if x.meets(y) {
				return y, x, true
			}
		}
	}
	return a, b, false
}

// firstCluster is how many boxes, sorted along axis, come before the first plane across it that cuts none.
func firstCluster(boxes []Box, axis int) int {
	end := int64(0)
	for i, b := range boxes {
		if i > 0 && b.Offsets[axis] >= end {
			return i
		}
		end = max(end, b.Offsets[axis]+b.Sizes[axis])
	}
	return len(boxes)
}

// meets reports whether two boxes share an element.
func (a Box) meets(b Box) bool {
	for d := range a.Offsets {
		if a.Offsets[d] >= b.Offsets[d]+b.Sizes[d] || b.Offsets[d] >= a.Offsets[d]+a.Sizes[d] {
			return false
		}
	}
	return true
}
