package rng

import (
	"math"
	"sync"
)

// segments is upperQuantile(v/2^33) for 1 <= v < 2^32 as polynomials, one for each sixteenth of an octave of v:
// c[0] + c[1] t + ... where t is what v has above the segment's lower end, in units of the octave.
// Segment and t are bit fields of v, so that a value costs a look-up and a few products, and no branch.
type segments [32 * perOctave][8]float64

const (
	subBits   = 4
	perOctave = 1 << subBits
)

// find is the coefficients and the t of v.
func (t *segments) find(v float64) (c *[8]float64, x float64) {
	const fieldBits = 52 - subBits
	b := math.Float64bits(v)
	x = math.Float64frombits(b&(1<<fieldBits-1)|1023<<52) - 1
	return &t[(b>>fieldBits-1023<<subBits)%(32*perOctave)], x
}

// coarse is the polynomial of degree 4. Of [coarseTable] it errs by less than 2^-32, and by less than 2^-28 of
// any value over 1e-3: less than float32 rounds.
func (t *segments) coarse(v float64) float64 {
	c, x := t.find(v)
	return float64((float64((float64((float64(c[4]*x)+c[3])*x)+c[2])*x)+c[1])*x) + c[0]
}

// fine is the polynomial of degree 7. Of [fineTable] it errs by less than 2^-44 of any value over 1/32.
func (t *segments) fine(v float64) float64 {
	c, x := t.find(v)
	y := float64(c[7]*x) + c[6]
	y = float64(y*x) + c[5]
	y = float64(y*x) + c[4]
	y = float64(y*x) + c[3]
	y = float64(y*x) + c[2]
	y = float64(y*x) + c[1]
	return float64(y*x) + c[0]
}

// The tables, made once. Their points are the roots of the Chebyshev polynomials of degree 5 and 8,
// cos((2k+1)pi/10) and cos((2k+1)pi/16), which keep an interpolation's error even.
var (
	coarseTable = sync.OnceValue(func() *segments {
		return newSegments(-0.9510565162951535, -0.5877852522924731, 0, 0.5877852522924731, 0.9510565162951535)
	})
	fineTable = sync.OnceValue(func() *segments {
		return newSegments(-0.9807852804032304, -0.8314696123025452, -0.5555702330196022, -0.1950903220161283,
			0.1950903220161283, 0.5555702330196022, 0.8314696123025452, 0.9807852804032304)
	})
)

// newSegments fits every segment at points, given in [-1, 1].
func newSegments(points ...float64) *segments {
	x := make([]float64, len(points))
	for i, p := range points {
		x[i] = (1 + p) / 2 / perOctave
	}
	t := new(segments)
	for i := range t {
		octave := math.Float64frombits(uint64(1023+i/perOctave) << 52)
		from := float64(i%perOctave) / perOctave
		fit(&t[i], x, func(x float64) float64 {
			return upperQuantile(octave * (1 + from + x) / 0x1p33)
		})
	}
	return t
}

// fit sets c to the polynomial that equals f at the points x.
func fit(c *[8]float64, x []float64, f func(float64) float64) {
	degree := len(x) - 1
	d := make([]float64, len(x))
	for i := range x {
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
