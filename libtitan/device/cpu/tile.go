package cpu

import (
	"math"
	"unsafe"
)

// tile6x16Go is the tile in portable Go; see [tileFunc].
func tile6x16Go(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool) {
	for j := range panels {
		for r := range 6 {
			var acc [16]float32
			for p := range k {
				av := *at(a, r*rs+p*ps)
				for x, bv := range unsafe.Slice(at(b, j*bp+p*bs), 16) {
					acc[x] = fma32(av, bv, acc[x])
				}
			}
			out := unsafe.Slice(at(c, r*ldc+j*16), 16)
			for x, v := range acc {
				if add {
					v = out[x] + v
				}
				out[x] = v
			}
		}
	}
}

// at is &p[i] without a length to check.
func at(p *float32, i int) *float32 { return (*float32)(unsafe.Add(unsafe.Pointer(p), 4*i)) }

// fma32 is a*b+c rounded once to float32. The product is exact in float64; rounding the sum to odd there
// (Boldo and Melquiond, 2008) makes the second rounding harmless.
func fma32(a, b, c float32) float32 {
	p, q := float64(a)*float64(b), float64(c)
	s := p + q
	t := s - p
	if e := (p - (s - t)) + (q - t); e != 0 && !math.IsInf(s, 0) && s == s {
		if u := math.Float64bits(s); u&1 == 0 {
			if (e > 0) == (s > 0) {
				u++
			} else {
				u--
			}
			s = math.Float64frombits(u)
		}
	}
	return float32(s)
}
