package dtype

import "math"

// BF16 rounds f to bfloat16, ties to even; a NaN stays a NaN.
func BF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// F32 widens a bfloat16, exactly.
func F32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// NarrowBF16 rounds src into dst, element by element; dst is as long as src.
func NarrowBF16(dst []uint16, src []float32) {
	dst = dst[:len(src)]
	for i, f := range src {
		dst[i] = BF16(f)
	}
}

// WidenBF16 widens src into dst, element by element; dst is as long as src.
func WidenBF16(dst []float32, src []uint16) {
	dst = dst[:len(src)]
	for i, b := range src {
		dst[i] = F32(b)
	}
}
