package data

import "math/bits"

// permute maps i to its place in the shuffle of [0, n) that key selects: a bijection that needs no table. It is
// a Feistel network over the smallest even number of bits that holds n, walked until it lands below n (Black and
// Rogaway, "Ciphers with arbitrary finite domains", 2002); that is less than four rounds of it on average.
func permute(i, n int64, key uint64) int64 {
	half := (bits.Len64(uint64(n-1)) + 1) / 2
	mask := uint64(1)<<half - 1
	x := uint64(i)
	for {
		left, right := x>>half, x&mask
		for round := range uint64(8) {
			left, right = right, left^mix(key^mix(right<<8|round))&mask
		}
		x = left<<half | right
		if x < uint64(n) {
			return int64(x)
		}
	}
}

// mix scrambles 64 bits, one to one (the finaliser of splitmix64, Steele, Lea and Flood 2014).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
