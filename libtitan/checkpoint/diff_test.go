package checkpoint

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// differing compares two elements under a tolerance.
func differing(dt dtype.DType, a, b uint64, rtol, atol float64) mismatch {
	d := differ{o: &DiffOptions{Rtol: rtol, Atol: atol}}
	p, q := binary.LittleEndian.AppendUint64(nil, a), binary.LittleEndian.AppendUint64(nil, b)
	d.piece(dt, p[:dt.Size()], q[:dt.Size()])
	return d.found
}

// TestNoToleranceSpansInfinity: rtol times an infinity is one, within which everything would lie.
func TestNoToleranceSpansInfinity(t *testing.T) {
	for _, c := range [][2]float64{{1, math.Inf(1)}, {math.Inf(1), 1}, {math.Inf(1), math.Inf(-1)}, {math.NaN(), math.Inf(1)}} {
		m := differing(dtype.Float64, math.Float64bits(c[0]), math.Float64bits(c[1]), 1e-5, 1)
		require.EqualValues(t, 1, m.count, c)
	}
	same := differing(dtype.Float64, math.Float64bits(math.NaN()), math.Float64bits(math.NaN())+1, 0, 1)
	require.Zero(t, same.count)
}

// TestNaNsOfOtherBits: with no tolerance the bytes decide, and then no number is concerned.
func TestNaNsOfOtherBits(t *testing.T) {
	nan := uint64(math.Float32bits(float32(math.NaN())))
	m := differing(dtype.Float32, nan, nan+1, 0, 0)
	m.elements = 1
	require.Equal(t, "1 of 1 elements differ, first at [0]: nan and nan; NaNs of other bits", m.describe(dtype.Float32, []int64{1}))
	m = differing(dtype.Float32, nan, 0, 0, 0)
	m.elements = 1
	require.Equal(t, "1 of 1 elements differ, first at [0]: nan and 0; NaN against a number", m.describe(dtype.Float32, []int64{1}))
}

// TestWideIntegersAreSubtractedExactly: float64 does not tell 2^62 from 2^62+1.
func TestWideIntegersAreSubtractedExactly(t *testing.T) {
	for _, dt := range []dtype.DType{dtype.Int64, dtype.UInt64} {
		require.EqualValues(t, 1, differing(dt, 1<<62, 1<<62+1, 0, 0.5).count)
		require.EqualValues(t, 1, differing(dt, 1<<62+1, 1<<62, 0, 0).maxAbs)
		require.Zero(t, differing(dt, 1<<62, 1<<62+1, 0, 1).count)
	}
	minus := uint64(math.MaxUint64) // -1
	require.EqualValues(t, 6, differing(dtype.Int64, minus, 5, 0, 0).maxAbs)
}
