// Package rng makes the random numbers that a model starts from, the same bits on every machine.
//
// There are two sources. [FillNormal] and [FillTruncNormal] are counter-based: a value is a pure function of
// (seed, name of the parameter, index of the element), so that any slice can be made alone, in any order, by
// any rank. [Torch] is PyTorch's CPU generator, a Mersenne Twister whose values depend on everything drawn
// before; [Sequence] gives it random access in bounded memory.
//
// Go may fuse x*y+z into one rounding on some machines, across statements too. A product that feeds a sum is
// therefore converted explicitly throughout (the language forbids fusing across a conversion), and of package math
// only the functions with one possible result are used: Sqrt, FMA, Abs, Floor and the like.
package rng

// The multipliers and Weyl constants of Philox4x32 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as
// easy as 1, 2, 3", SC 2011, section 4.2).
const (
	philoxM0 = 0xd2511f53
	philoxM1 = 0xcd9e8d57
	philoxW0 = 0x9e3779b9
	philoxW1 = 0xbb67ae85
)

// philox is Philox4x32-10: a bijection of the counter, four words, that depends on the key, two.
func philox(c0, c1, c2, c3, k0, k1 uint32) (uint32, uint32, uint32, uint32) {
	for range 10 {
		p, q := uint64(philoxM0)*uint64(c0), uint64(philoxM1)*uint64(c2)
		c0, c1, c2, c3 = uint32(q>>32)^c1^k0, uint32(q), uint32(p>>32)^c3^k1, uint32(p)
		k0, k1 = k0+philoxW0, k1+philoxW1
	}
	return c0, c1, c2, c3
}

// stream is the random words of one parameter. Word i is lane i%4 of the block whose counter is (i/4, name),
// 64 bits each, under the key seed. Two parameters of a model share words only if the 64-bit hashes of their
// names collide, a chance of n*n/2^65 for n names; two seeds never share a counter's key.
type stream struct {
	seed, name uint64
}

// newStream hashes fqn by 64-bit FNV-1a.
func newStream(seed uint64, fqn string) stream {
	h := uint64(0xcbf29ce484222325)
	for i := range len(fqn) {
		h = (h ^ uint64(fqn[i])) * 0x100000001b3
	}
	return stream{seed, h}
}

// words writes the words of blocks i, i+1, ... into dst, whose length is a multiple of 4.
func (s stream) words(dst []uint32, i uint64) {
	done := s.fastWords(dst, i)
	dst, i = dst[done:], i+uint64(done/4)
	n0, n1, k0, k1 := uint32(s.name), uint32(s.name>>32), uint32(s.seed), uint32(s.seed>>32)
	for ; len(dst) >= 4; dst = dst[4:] {
		dst[0], dst[1], dst[2], dst[3] = philox(uint32(i), uint32(i>>32), n0, n1, k0, k1)
		i++
	}
}
