package rng

import "math"

// pair is an unevaluated sum hi+lo of two float64, |lo| at most half an ulp of hi: about 106 bits. The algorithms
// are Dekker's and Knuth's ("A floating-point technique for extending the available precision", 1971).
type pair struct{ hi, lo float64 }

func sum(a, b float64) pair {
	s := a + b
	v := s - a
	return pair{s, (a - (s - v)) + (b - v)}
}

func (a pair) add(b pair) pair {
	s := sum(a.hi, b.hi)
	return sum(s.hi, s.lo+(a.lo+b.lo))
}

func (a pair) mul(b pair) pair {
	p := float64(a.hi * b.hi)
	e := math.FMA(a.hi, b.hi, -p)
	return sum(p, e+(float64(a.hi*b.lo)+float64(a.lo*b.hi)))
}

func (a pair) div(b pair) pair {
	q := a.hi / b.hi
	r := a.add(b.mul(pair{-q, 0}))
	return sum(q, r.hi/b.hi)
}

// preciseLog is ln x for 0 < x <= 1, correctly rounded but for one value in 2^40 or so, by the series of the
// inverse hyperbolic tangent. The C library's log that PyTorch calls errs by 0.52 ulp at most.
func preciseLog(x float64) float64 {
	if x == 1 {
		return 0
	}
	ln2 := pair{0x1.62e42fefa39efp-1, 0x1.abc9e3b39803fp-56}
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	s := sum(m, -1).div(sum(m, 1))
	s2 := s.mul(s)
	series := pair{}
	for k := 61; k >= 1; k -= 2 {
		series = series.mul(s2).add(pair{1, 0}.div(pair{float64(k), 0}))
	}
	l := s.mul(series)
	l = pair{2 * l.hi, 2 * l.lo}.add(ln2.mul(pair{float64(e), 0}))
	return l.hi
}

// preciseSinCos is the sine and cosine of 0 <= x < 8, as precise as preciseLog.
func preciseSinCos(x float64) (sin, cos float64) {
	// pi/2 as the sum of three float64
	halfPi := [3]float64{0x1.921fb54442d18p0, 0x1.1a62633145c07p-54, -0x1.f1976b7ed8fbcp-110}
	x = float64(x) // the caller's product is not to be fused below
	n := math.Floor(x/halfPi[0] + 0.5)
	p := float64(n * halfPi[0])
	r := sum(x, -p).add(pair{-math.FMA(n, halfPi[0], -p), 0})
	r = r.add(pair{n, 0}.mul(pair{-halfPi[1], -halfPi[2]}))
	r2 := r.mul(r)
	r2 = pair{-r2.hi, -r2.lo}
	s, c := pair{}, pair{}
	for k := 27.0; k >= 1; k -= 2 { // Taylor: s = 1 - r²/(2·3) (1 - r²/(4·5) (...)), c likewise
		s = pair{1, 0}.add(s.mul(r2).div(pair{(k + 1) * (k + 2), 0}))
		c = pair{1, 0}.add(c.mul(r2).div(pair{k * (k + 1), 0}))
	}
	s = s.mul(r)
	switch int(n) % 4 {
	case 0:
		return s.hi, c.hi
	case 1:
		return c.hi, -s.hi
	case 2:
		return -s.hi, -c.hi
	default:
		return -c.hi, s.hi
	}
}
