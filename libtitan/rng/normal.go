package rng

import (
	"math"
	"sync"
)

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
	table, s := quantileTable(), *d
	words = words[:len(dst)]
	done := d.fastValues(dst, words, table)
	dst, words = dst[done:], words[done:]
	for i, w := range words {
		v := float64(float64(2*(w&0x7fffffff)+1)*s.scale) + s.shift
		x := min(float32(table.quantile(v)*s.std), s.cut)
		dst[i] = math.Float32frombits(math.Float32bits(x) | w&0x80000000)
	}
}

// segments is upperQuantile(v/2^33) for 1 <= v < 2^32 as polynomials of degree 4, one for each sixteenth of an octave of v:
// c[0] + c[1] t + ... where t is what v has above the segment's lower end, in units of the octave.
// Segment and t are bit fields of v, so that a value costs a look-up and four products, and no branch.
type segments [32 * perOctave][8]float64

// perOctave and the degree keep the error under 2^-32, and under 2^-28 of any value over 1e-3. Eight
// coefficients' room, of which five are used, keeps a segment in one cache line.
const (
	subBits   = 4
	perOctave = 1 << subBits
	degree    = 4
)

func (t *segments) quantile(v float64) float64 {
	const fieldBits = 52 - subBits
	b := math.Float64bits(v)
	c := &t[(b>>fieldBits-1023<<subBits)%(32*perOctave)]
	x := math.Float64frombits(b&(1<<fieldBits-1)|1023<<52) - 1
	return float64((float64((float64((float64(c[4]*x)+c[3])*x)+c[2])*x)+c[1])*x) + c[0]
}

// quantileTable fits the segments' polynomials, once.
var quantileTable = sync.OnceValue(func() *segments {
	t := new(segments)
	for i := range t {
		octave := math.Float64frombits(uint64(1023+i/perOctave) << 52)
		from := float64(i%perOctave) / perOctave
		fit(&t[i], func(x float64) float64 {
			return upperQuantile(octave * (1 + from + x) / 0x1p33)
		})
	}
	return t
})

// fit sets c to the polynomial that equals f at the Chebyshev points of [0, 1/perOctave].
func fit(c *[8]float64, f func(float64) float64) {
	// cos((2k+1)pi/10): the roots of the Chebyshev polynomial of degree 5.
	roots := [degree + 1]float64{-0.9510565162951535, -0.5877852522924731, 0, 0.5877852522924731, 0.9510565162951535}
	var x, d [degree + 1]float64
	for i, r := range roots {
		x[i] = (1 + r) / 2 / perOctave
		d[i] = f(x[i])
	}
	for k := 1; k <= degree; k++ { // Newton's divided differences
		for i := degree; i >= k; i-- {
			d[i] = float64(d[i]-d[i-1]) / float64(x[i]-x[i-k])
		}
	}
	c[0] = d[degree]
	for k := degree - 1; k >= 0; k-- { // c = c * (t - x[k]) + d[k]
		for i := degree - k; i > 0; i-- {
			c[i] = c[i-1] - float64(c[i]*x[k])
		}
		c[0] = d[k] - float64(c[0]*x[k])
	}
}
