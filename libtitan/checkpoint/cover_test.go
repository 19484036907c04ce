package checkpoint

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Random boxes in a small grid, against counting each element.
func TestTilingAgreesWithCounting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		shape := rapid.SliceOfN(rapid.Int64Range(1, 4), 0, 3).Draw(t, "shape")
		count := map[string]int{}
		twice := false
		var boxes []Box
		for range rapid.IntRange(0, 6).Draw(t, "boxes") {
			var b Box
			for _, n := range shape {
				from := rapid.Int64Range(0, n).Draw(t, "from")
				b.Offsets = append(b.Offsets, from)
				b.Sizes = append(b.Sizes, rapid.Int64Range(0, n-from).Draw(t, "size"))
			}
			boxes = append(boxes, b)
			for p := range pieces(b, 1) {
				count[offsetKey(p.Offsets)]++
				twice = twice || count[offsetKey(p.Offsets)] > 1
			}
		}
		total, err := numel(shape)
		require.NoError(t, err)
		err = checkTiling(shape, boxes)
		require.Equal(t, !twice && int64(len(count)) == total, err == nil, "%v", err)
		if twice {
			require.ErrorContains(t, err, "overlap")
		}
	})
}

// Four boxes around a fifth, which no plane separates.
func TestPinwheel(t *testing.T) {
	boxes := []Box{{[]int64{0, 0}, []int64{1, 2}}, {[]int64{0, 2}, []int64{2, 1}}, {[]int64{2, 1}, []int64{1, 2}}, {[]int64{1, 0}, []int64{2, 1}}, {[]int64{1, 1}, []int64{1, 1}}}
	require.NoError(t, checkTiling([]int64{3, 3}, boxes))
	boxes[4].Sizes = []int64{1, 2}
	require.ErrorContains(t, checkTiling([]int64{3, 3}, boxes), "overlap")
}

func TestManyChunksAreCheckedFast(t *testing.T) {
	const side = 1000
	var boxes []Box
	for i := range int64(side) {
		for j := range int64(side) {
			boxes = append(boxes, Box{[]int64{i, j}, []int64{1, 1}})
		}
	}
	require.NoError(t, checkTiling([]int64{side, side}, boxes)) // a test of every pair would take minutes
}
