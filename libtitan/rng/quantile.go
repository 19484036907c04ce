package rng

import "math"

// The rational functions of Wichura's PPND16 ("Algorithm AS 241: The percentage points of the normal
// distribution", Applied Statistics 37, 1988), numerator and denominator, constant term first. Relative error
// about 1e-16.
var (
	centralNum = [8]float64{3.3871328727963666080e0, 1.3314166789178437745e2, 1.9715909503065514427e3, 1.3731693765509461125e4, 4.5921953931549871457e4, 6.7265770927008700853e4, 3.3430575583588128105e4, 2.5090809287301226727e3}
	centralDen = [8]float64{1, 4.2313330701600911252e1, 6.8718700749205790830e2, 5.3941960214247511077e3, 2.1213794301586595867e4, 3.9307895800092710610e4, 2.8729085735721942674e4, 5.2264952788528545610e3}
	tailNum    = [8]float64{1.42343711074968357734e0, 4.63033784615654529590e0, 5.76949722146069140550e0, 3.64784832476320460504e0, 1.27045825245236838258e0, 2.41780725177450611770e-1, 2.27238449892691845833e-2, 7.74545014278341407640e-4}
	tailDen    = [8]float64{1, 2.05319162663775882187e0, 1.67638483018380384940e0, 6.89767334985100004550e-1, 1.48103976427480074590e-1, 1.51986665636164571966e-2, 5.47593808499534494600e-4, 1.05075007164441684324e-9}
	farNum     = [8]float64{6.65790464350110377720e0, 5.46378491116411436990e0, 1.78482653991729133580e0, 2.96560571828504891230e-1, 2.65321895265761230930e-2, 1.24266094738807843860e-3, 2.71155556874348757815e-5, 2.01033439929228813265e-7}
	farDen     = [8]float64{1, 5.99832206555887937690e-1, 1.36929880922735805310e-1, 1.48753612908506148525e-2, 7.86869131145613259100e-4, 1.84631831751005468180e-5, 1.42151175831644588870e-7, 2.04426310338993978564e-15}
)

// upperQuantile is the z >= 0 that a standard normal exceeds with probability p, 0 < p <= 1/2.
func upperQuantile(p float64) float64 {
	if q := 0.5 - p; q <= 0.425 {
		r := 0.180625 - float64(q*q)
		return q * ratio(&centralNum, &centralDen, r)
	}
	if r := math.Sqrt(-logarithm(p)); r <= 5 {
		return ratio(&tailNum, &tailDen, r-1.6)
	} else {
		return ratio(&farNum, &farDen, r-5)
	}
}

// upperTail is the inverse of upperQuantile: the probability that a standard normal exceeds z >= 0, by bisection.
// It is 0 where that is under 2^-64.
func upperTail(z float64) float64 {
	lo, hi := 0x1p-64, 0.5
	if z >= upperQuantile(lo) {
		return 0
	}
	for {
		mid := float64(lo+hi) / 2
		if mid <= lo || mid >= hi {
			return hi
		}
		if upperQuantile(mid) > z {
			lo = mid
		} else {
			hi = mid
		}
	}
}

// ratio is the rational function num(x)/den(x).
func ratio(num, den *[8]float64, x float64) float64 {
	n, d := num[7], den[7]
	for i := 6; i >= 0; i-- {
		n, d = float64(n*x)+num[i], float64(d*x)+den[i]
	}
	return n / d
}

// logarithm is ln x for positive normal x, within 1 ulp: FreeBSD's e_log.c, as package math has it for
// machines without an assembler version.
func logarithm(x float64) float64 {
	const (
		ln2Hi = 6.93147180369123816490e-01
		ln2Lo = 1.90821492927058770002e-10
		l1    = 6.666666666666735130e-01
		l2    = 3.999999999940941908e-01
		l3    = 2.857142874366239149e-01
		l4    = 2.222219843214978396e-01
		l5    = 1.818357216161805012e-01
		l6    = 1.531383769920937332e-01
		l7    = 1.479819860511658591e-01
	)
	b := math.Float64bits(x)
	k := float64(int(b>>52) - 1022)
	m := math.Float64frombits(b&(1<<52-1) | 1022<<52) // x = m 2^k, 1/2 <= m < 1
	if m < math.Sqrt2/2 {
		m *= 2
		k--
	}
	f := m - 1
	s := f / (2 + f)
	s2 := s * s
	s4 := s2 * s2
	even := float64(s2 * (l1 + float64(s4*(l3+float64(s4*(l5+float64(s4*l7)))))))
	odd := float64(s4 * (l2 + float64(s4*(l4+float64(s4*l6)))))
	half := float64(0.5 * f * f)
	return float64(k*ln2Hi) - ((half - (float64(s*(half+(even+odd))) + float64(k*ln2Lo))) - f)
}
