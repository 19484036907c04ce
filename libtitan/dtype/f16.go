package dtype

import "math"

// F16 rounds f to IEEE half precision, ties to even; above 65,504 and a half step it is infinite, a NaN stays a NaN.
func F16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00
	case u >= 0x47800000: // 2^16
		return sign | 0x7c00
	case u < 0x38800000: // 2^-14: a subnormal counts steps of 2^-24, which is what 0.5 counts in
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	return sign | uint16((u-112<<23+0xfff+u>>13&1)>>13) // the exponents' biases are 127 and 15
}

// F32FromF16 widens a half, exactly.
func F32FromF16(h uint16) float32 {
	sign, rest := uint32(h&0x8000)<<16, uint32(h&0x7fff)
	switch {
	case rest >= 0x7c00:
		return math.Float32frombits(sign | 0x7f800000 | rest&0x3ff<<13)
	case rest < 0x400:
		return math.Float32frombits(sign | math.Float32bits(float32(rest)*0x1p-24))
	}
	return math.Float32frombits(sign | (rest<<13 + 112<<23))
}

// WidenF16 widens src into dst, element by element; dst is as long as src.
func WidenF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, h := range src {
		dst[i] = F32FromF16(h)
	}
}
