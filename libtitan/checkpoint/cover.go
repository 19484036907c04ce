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

// overlapping finds two boxes that share an element. It sweeps along the dim that is cut most finely, so that the
// usual layouts cost n log n.
func overlapping(boxes []Box, dims int) (a, b Box, found bool) {
	if dims == 0 && len(boxes) > 1 {
		return boxes[0], boxes[1], true
	}
	if len(boxes) < 2 {
		return a, b, false
	}
	axis := finestAxis(boxes, dims)
	slices.SortStableFunc(boxes, func(x, y Box) int { return cmp.Compare(x.Offsets[axis], y.Offsets[axis]) })
	var active []Box
	for _, x := range boxes {
		active = slices.DeleteFunc(active, func(y Box) bool { return y.Offsets[axis]+y.Sizes[axis] <= x.Offsets[axis] })
		for _, y := range active {
			if x.meets(y) {
				return y, x, true
			}
		}
		active = append(active, x)
	}
	return a, b, false
}

func finestAxis(boxes []Box, dims int) int {
	best, most := 0, 0
	for d := range dims {
		starts := make(map[int64]struct{}, len(boxes))
		for _, b := range boxes {
			starts[b.Offsets[d]] = struct{}{}
		}
		if len(starts) > most {
			best, most = d, len(starts)
		}
	}
	return best
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
