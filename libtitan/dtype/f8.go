package dtype

import "math"

// float8 is the layout of a float of 8 bits: a sign, exponent bits with a bias, mantissa bits.
type float8 struct {
	man, bias    int
	largest      float32 // finite
	largestBits  uint8
	nan          uint8
	infinityBits uint8 // 0: the type has none
}

var (
	e4m3 = float8{man: 3, bias: 7, largest: 448, largestBits: 0x7e, nan: 0x7f}
	e5m2 = float8{man: 2, bias: 15, largest: 57344, largestBits: 0x7b, nan: 0x7f, infinityBits: 0x7c}
)

// round rounds f to the nearest, ties to even. What is beyond the largest, infinity too, becomes the largest: CUDA's
// satfinite, and what PyTorch gives after a clamp. A NaN stays a NaN.
func (t *float8) round(f float32) uint8 {
	u := math.Float32bits(f)
	sign := uint8(u >> 24 & 0x80)
	u &= 0x7fffffff
	x, shift := math.Float32frombits(u), 23-t.man
	switch {
	case u > 0x7f800000:
		return sign | t.nan
	case x >= t.largest:
		return sign | t.largestBits
	case u < uint32(128-t.bias)<<23: // a subnormal counts steps of 2^(1-bias-man), which is what this number counts in
		steps := math.Float32frombits(uint32(128-t.bias+shift) << 23)
		return sign | uint8(math.Float32bits(x+steps)-math.Float32bits(steps))
	}
	return sign | uint8((u-uint32(127-t.bias)<<23+1<<(shift-1)-1+u>>shift&1)>>shift)
}

// widen is exact.
func (t *float8) widen(b uint8) float32 {
	sign, rest := uint32(b&0x80)<<24, b&0x7f
	switch {
	case rest > t.largestBits && rest == t.infinityBits:
		return math.Float32frombits(sign | 0x7f800000)
	case rest > t.largestBits:
		return float32(math.NaN())
	case rest < 1<<t.man:
		step := math.Float32frombits(uint32(128-t.bias-t.man) << 23)
		return math.Float32frombits(sign | math.Float32bits(float32(rest)*step))
	}
	return math.Float32frombits(sign | (uint32(rest)<<(23-t.man) + uint32(127-t.bias)<<23))
}

// Float8Max is the largest finite value of a float8 type that is computed with, 0 for other types.
func (d DType) Float8Max() float32 {
	if t := d.format(); t != nil {
		return t.largest
	}
	return 0
}

// format is the layout of the float8 types that are computed with; nil for other types.
func (d DType) format() *float8 {
	switch d {
	case Float8E4M3FN:
		return &e4m3
	case Float8E5M2:
		return &e5m2
	}
	return nil
}

// NarrowFloat8 rounds src into the float8 type d, element by element; dst is as long as src.
func (d DType) NarrowFloat8(dst []byte, src []float32) {
	dst, t := dst[:len(src)], *d.format()
	for i, f := range src {
		dst[i] = t.round(f)
	}
}

// Float8Table is the values of the 256 patterns of the float8 type d.
func (d DType) Float8Table() (values [256]float32) {
	t := d.format()
	for b := range values {
		values[b] = t.widen(uint8(b))
	}
	return values
}

// leastAmax is the magnitude below which a scale grows no further, torchao's EPS: all zeros scale by a number.
const leastAmax = 1e-12

// Float8Scale is what numbers of magnitudes up to amax are multiplied by before they are rounded to the float8 type d, so
// that amax becomes the largest; with power2 the power of 2 below (torchao's amax_to_scale). The scale of infinity is 0 and
// that of NaN is NaN: 0 times infinity is NaN, and so is what its reciprocal scales, so that a step with one is noticed.
func Float8Scale(d DType, amax float32, power2 bool) float32 {
	scale := float32(float64(d.Float8Max()) / max(float64(amax), leastAmax))
	if power2 && scale > 0 {
		_, e := math.Frexp(float64(scale))
		scale = float32(math.Ldexp(1, e-1))
	}
	return scale
}
