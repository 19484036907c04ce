package dtype_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// Every half is the value that IEEE 754 gives its bits, comes back from float32, and is what the numbers between it and
// the next one round to.
func TestF16(t *testing.T) {
	for h := range uint16(0x7c00) {
		for _, sign := range []uint16{0, 0x8000} {
			f := dtype.F32FromF16(h | sign)
			want := math.Ldexp(float64(h&0x3ff), -24)
			if e := int(h >> 10); e > 0 {
				want = math.Ldexp(float64(h&0x3ff)+1024, e-25)
			}
			require.Equal(t, float32(math.Copysign(want, -float64(int(sign)-1))), f, "%#x", h|sign)
			require.Equal(t, h|sign, dtype.F16(f))
			next := dtype.F32FromF16(h+1) - dtype.F32FromF16(h)
			if h == 0x7bff {
				next = 32 // to infinity as to 65,536
			}
			if sign > 0 {
				next = -next
			}
			half := f + next/2
			require.Equal(t, (h+h&1)|sign, dtype.F16(half), "a tie goes to the even one: %v", half)
			require.Equal(t, h|sign, dtype.F16(math.Nextafter32(half, f)))
			require.Equal(t, (h+1)|sign, dtype.F16(math.Nextafter32(half, 2*half)))
		}
	}
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	require.Equal(t, uint16(0x7c00), dtype.F16(inf))
	require.Equal(t, uint16(0xfc00), dtype.F16(-inf))
	require.Equal(t, uint16(0x7c00), dtype.F16(1e30))
	require.Equal(t, inf, dtype.F32FromF16(0x7c00))
	require.True(t, math.IsNaN(float64(dtype.F32FromF16(dtype.F16(nan)))))
	narrow, wide := make([]uint16, 2), make([]float32, 2)
	for i, f := range []float32{1.5, -2} {
		narrow[i] = dtype.F16(f)
	}
	dtype.WidenF16(wide, narrow)
	require.Equal(t, []float32{1.5, -2}, wide)
}
