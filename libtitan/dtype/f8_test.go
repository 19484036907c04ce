package dtype_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// float8s are the two formats of the Open Compute Project's OFP8 specification (2023), table 1.
var float8s = []struct {
	dtype      dtype.DType
	bias, man  int
	largest    uint8
	numbers    map[uint8]float32 // from the specification
	values     int               // of 256 patterns that are finite
	infinities bool
}{
	{dtype.Float8E4M3FN, 7, 3, 0x7e, map[uint8]float32{0: 0, 1: 0x1p-9, 7: 0.875 * 0x1p-6, 8: 0x1p-6, 0x38: 1, 0x39: 1.125, 0x7e: 448, 0xfe: -448, 0xc4: -3}, 254, false},
	{dtype.Float8E5M2, 15, 2, 0x7b, map[uint8]float32{0: 0, 1: 0x1p-16, 3: 0.75 * 0x1p-14, 4: 0x1p-14, 0x3c: 1, 0x3d: 1.25, 0x7b: 57344, 0xfb: -57344, 0xc2: -3}, 248, true},
}

// Every pattern is the value that its fields say, comes back from float32, and is what the numbers between it and its
// neighbours round to; beyond the largest lies the largest.
func TestFloat8(t *testing.T) {
	for _, c := range float8s {
		t.Run(c.dtype.String(), func(t *testing.T) {
			table := c.dtype.Float8Table()
			widen := func(bits uint8) float32 { return table[bits] }
			round := func(x float32) uint8 {
				var bits [1]byte
				c.dtype.NarrowFloat8(bits[:], []float32{x})
				return bits[0]
			}
			for bits, x := range c.numbers {
				require.Equal(t, x, widen(bits), "%#x", bits)
			}
			finite := 0
			for b := range 256 {
				bits := uint8(b)
				x := widen(bits)
				if m := bits & 0x7f; m > c.largest {
					require.Equal(t, c.infinities && m == 0x7c, math.IsInf(float64(x), 0), "%#x", bits)
					require.Equal(t, !c.infinities || m > 0x7c, math.IsNaN(float64(x)), "%#x", bits)
					continue
				}
				finite++
				e, f := int(bits&0x7f)>>c.man, float64(bits&(1<<c.man-1))
				want := math.Ldexp(f, 1-c.bias-c.man)
				if e > 0 {
					want = math.Ldexp(f+float64(int(1)<<c.man), e-c.bias-c.man)
				}
				require.Equal(t, float32(math.Copysign(want, -float64(int(bits&0x80))+0.5)), x, "%#x", bits)
				require.Equal(t, bits, round(x))
				if bits&0x7f == c.largest {
					continue
				}
				next := widen(bits + 1)
				half := x + (next-x)/2
				require.Equal(t, bits+bits&1, round(half), "a tie goes to the even one: %v", half)
				require.Equal(t, bits, round(math.Nextafter32(half, x)), half)
				require.Equal(t, bits+1, round(math.Nextafter32(half, next)), half)
			}
			require.Equal(t, c.values, finite)
			top := widen(c.largest)
			require.Equal(t, top, c.dtype.Float8Max())
			for _, beyond := range []float32{math.Nextafter32(top, 2*top), 1.04 * top, 1e30, float32(math.Inf(1))} {
				require.Equal(t, c.largest, round(beyond), beyond)
				require.Equal(t, c.largest|0x80, round(-beyond), -beyond)
			}
			require.True(t, math.IsNaN(float64(widen(round(float32(math.NaN()))))))
			require.Equal(t, uint8(0), round(math.SmallestNonzeroFloat32))
		})
	}
}

// The scales of torchao's amax_to_scale.
func TestFloat8Scale(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, c := range []struct {
		dtype  dtype.DType
		amax   float32
		power2 bool
		want   float32
	}{
		{dtype.Float8E4M3FN, 448, false, 1},
		{dtype.Float8E4M3FN, 3, false, float32(448.0 / 3)},
		{dtype.Float8E4M3FN, 3, true, 128},
		{dtype.Float8E4M3FN, 7, true, 64},
		{dtype.Float8E5M2, 2, false, 28672},
		{dtype.Float8E5M2, 2, true, 16384},
		{dtype.Float8E4M3FN, 0, false, 448e12},
		{dtype.Float8E4M3FN, 1e-13, false, 448e12},
		{dtype.Float8E4M3FN, inf, false, 0},
		{dtype.Float8E4M3FN, inf, true, 0},
	} {
		require.Equal(t, c.want, dtype.Float8Scale(c.dtype, c.amax, c.power2), "%+v", c)
	}
	require.True(t, math.IsNaN(float64(dtype.Float8Scale(dtype.Float8E4M3FN, nan, true))))
}
