package rng

import "math"

// FillNormal writes elements start, start+1, ... of the parameter fqn into dst: normal, mean 0, standard
// deviation std. An element takes one 32-bit word, so it lies within ±6.34 std.
func FillNormal(dst []float32, seed uint64, fqn string, start int64, std float64) {
	fill(dst, newStream(seed, fqn), uint64(start), sampler{scale: 1, std: std, cut: math.MaxFloat32})
}

// FillTruncNormal is [FillNormal] for the normal distribution cut at ±cut: no value lies outside, and the
// density inside keeps its shape. It draws no word twice and rejects none.
func FillTruncNormal(dst []float32, seed uint64, fqn string, start int64, std, cut float64) {
	tail := upperTail(cut / std)
	fill(dst, newStream(seed, fqn), uint64(start), sampler{
		scale: 1 - 2*tail,
		shift: tail * 0x1p33,
		std:   std,
		cut:   float32(cut),
	})
}

// fill writes the values of words start, start+1, ... of s.
func fill(dst []float32, s stream, start uint64, d sampler) {
	var words [1024]uint32
	for len(dst) > 0 {
		skip := int(start % 4)
		n := min(len(dst), len(words)-skip)
		s.words(words[:(skip+n+3)&^3], start/4)
		d.values(dst[:n], words[skip:])
		dst, start = dst[n:], start+uint64(n)
	}
}

// sampler turns random words into values by the inverse of the cumulative distribution.
type sampler struct {
	scale, shift float64 // of the tail probability, in units of 2^-33
	std          float64
	cut          float32 // no value exceeds it in size
}

// values maps each word's top bit to the sign, and its other bits m to the tail probability p = (2m+1)/2^33,
// strictly between 0 and 1/2.
func (d *sampler) values(dst []float32, words []uint32) {
	table, s := coarseTable(), *d
	words = words[:len(dst)]
	done := d.fastValues(dst, words, table)
	dst, words = dst[done:], words[done:]
	for i, w := range words {
		v := float64(float64(2*(w&0x7fffffff)+1)*s.scale) + s.shift
		x := min(float32(table.coarse(v)*s.std), s.cut)
		dst[i] = math.Float32frombits(math.Float32bits(x) | w&0x80000000)
	}
}
