package rng

import "golang.org/x/sys/cpu"

// philoxAVX2 writes the words of n blocks, a positive multiple of 8, from block i on.
//
//go:noescape
func philoxAVX2(dst *uint32, n int, i, name, seed uint64)

// valuesAVX2 maps n words, a positive multiple of 4, to values, with the roundings of [sampler.values].
//
//go:noescape
func valuesAVX2(dst *float32, words *uint32, n int, t *segments, d *sampler)

// fastWords is the number of leading words of dst that it wrote.
func (s stream) fastWords(dst []uint32, i uint64) int {
	n := len(dst) / 32 * 8
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	philoxAVX2(&dst[0], n, i, s.name, s.seed)
	return 4 * n
}

// fastValues is the number of leading values of dst that it wrote; words is as long.
func (d *sampler) fastValues(dst []float32, words []uint32, t *segments) int {
	n := len(dst) &^ 3
	if n == 0 || !cpu.X86.HasAVX2 {
		return 0
	}
	valuesAVX2(&dst[0], &words[0], n, t, d)
	return n
}
