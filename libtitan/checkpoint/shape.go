package checkpoint

import (
	"fmt"
	"math"
)

const maxDims = 64 // PyTorch's own limit

// numel is the product of a shape's sizes; 1 for a scalar. An error tells of a negative size, of more dims than a
// tensor may have, or of a product beyond 63 bits.
func numel(shape []int64) (int64, error) {
	if len(shape) > maxDims {
		return 0, fmt.Errorf("%d dims where a tensor has %d at most", len(shape), maxDims)
	}
	n, empty := int64(1), false
	for _, d := range shape {
		switch {
		case d < 0:
			return 0, fmt.Errorf("negative size in %v", shape)
		case d == 0:
			empty = true
		case n > math.MaxInt64/d:
			return 0, fmt.Errorf("the sizes %v multiply beyond 63 bits", shape)
		default:
			n *= d
		}
	}
	if empty {
		return 0, nil
	}
	return n, nil
}

// byteSize is numel times the element size.
func byteSize(shape []int64, elemBytes int) (int64, error) {
	n, err := numel(shape)
	if err == nil && n > math.MaxInt64/16 {
		err = fmt.Errorf("a tensor of shape %v does not fit any memory", shape)
	}
	return n * int64(elemBytes), err
}

// contiguous is the row-major strides of a shape, in elements, as PyTorch gives them: a size of 0 counts as 1.
func contiguous(shape []int64) []int64 {
	strides := make([]int64, len(shape))
	n := int64(1)
	for i := len(shape) - 1; i >= 0; i-- {
		strides[i] = n
		n *= max(shape[i], 1)
	}
	return strides
}

// within checks that a box of sizes at offsets lies inside shape.
func within(offsets, sizes, shape []int64) error {
	if len(offsets) != len(shape) || len(sizes) != len(shape) {
		return fmt.Errorf("offsets %v and sizes %v in a tensor of shape %v: the numbers of dims differ", offsets, sizes, shape)
	}
	for i, n := range shape {
		if offsets[i] < 0 || sizes[i] < 0 || offsets[i] > n || sizes[i] > n-offsets[i] {
			return fmt.Errorf("offsets %v and sizes %v reach outside the shape %v", offsets, sizes, shape)
		}
	}
	return nil
}
