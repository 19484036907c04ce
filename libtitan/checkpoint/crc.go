package checkpoint

import "hash/crc32"

// joinCRC is the CRC-32 of a followed by b, given those of each and b's length in bytes: a's is multiplied by
// x^(8·lenB) modulo the polynomial, as in zlib's crc32_combine. Bit 31 is x^0 in the reflected form used here.
func joinCRC(a, b uint32, lenB int64) uint32 {
	power := uint32(1) << 31  // x^0
	square := uint32(1) << 23 // x^8, one byte; then squared again and again
	for n := lenB; n > 0; n >>= 1 {
		if n&1 != 0 {
			power = mulPoly(power, square)
		}
		square = mulPoly(square, square)
	}
	return mulPoly(power, a) ^ b
}

// mulPoly multiplies two polynomials over GF(2) modulo CRC-32's.
func mulPoly(a, b uint32) uint32 {
	product := uint32(0)
	for ; a != 0; a <<= 1 {
		if a&(1<<31) != 0 {
			product ^= b
		}
		carry := b & 1
		b = b>>1 ^ crc32.IEEE&-carry
	}
	return product
}
