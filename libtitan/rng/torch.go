package rng

import (
	"math"

	"titan/libtitan/dtype"
)

// Torch is PyTorch 2.11's CPU generator: the values of torch.random, rand, randn and of the initialisers built on
// them, bit for bit as its AVX2 and AVX-512 builds give them on contiguous tensors. The exception is said at
// [Torch.TruncNormal].
type Torch struct {
	*twister
	spare *float64 // second value of the last scalar Box-Muller pair
}

// NewTorch is the generator after torch.manual_seed(seed).
func NewTorch(seed uint64) *Torch { return &Torch{twister: newTwister(seed)} }

// Uint64 is two draws, the first one high.
func (g *Torch) Uint64() uint64 {
	hi := uint64(g.Uint32())
	return hi<<32 | uint64(g.Uint32())
}

// Int63 is one value of an int64 tensor's random_().
func (g *Torch) Int63() int64 { return int64(g.Uint64() & math.MaxInt64) }

// Int63n is one value of an int64 tensor's random_(0, n), and of randint(0, n); n > 0.
func (g *Torch) Int63n(n int64) int64 {
	if n >= 1<<32 {
		return int64(g.Uint64() % uint64(n))
	}
	return int64(g.Uint32() % uint32(n))
}

// Perm is randperm(n).
func (g *Torch) Perm(n int) []int64 {
	p := make([]int64, n)
	for i := range p {
		p[i] = int64(i)
	}
	for i := range n - 1 {
		j := i + int(g.Int63n(int64(n-i)))
		p[i], p[j] = p[j], p[i]
	}
	return p
}

// Uniform is a float32 tensor's uniform_(lo, hi).
func (g *Torch) Uniform(dst []float32, lo, hi float64) {
	u := newUniform(lo, hi)
	for i := range dst {
		dst[i] = u.value(g.Uint32())
	}
}

// Uniform64 is a float64 tensor's uniform_(lo, hi).
func (g *Torch) Uniform64(dst []float64, lo, hi float64) {
	for i := range dst {
		dst[i] = math.FMA(unit64(g.Uint64()), hi-lo, lo)
	}
}

// UniformBF16 is a bfloat16 tensor's uniform_(lo, hi).
func (g *Torch) UniformBF16(dst []uint16, lo, hi float64) {
	u := uniform{bf16(float32(lo)), bf16(float32(hi)) - bf16(float32(lo))}
	for i := range dst {
		dst[i] = dtype.BF16(fma32(float32(g.Uint32()&0xff)*0x1p-8, u.width, u.lo))
	}
}

// uniform maps a draw to [lo, lo+width).
type uniform struct{ lo, width float32 }

func newUniform(lo, hi float64) uniform { return uniform{float32(lo), float32(hi) - float32(lo)} }

func (u uniform) value(w uint32) float32 { return fma32(unit(w), u.width, u.lo) }

// unit is the low 24 bits of a draw as a fraction, unit64 the low 53.
func unit(w uint32) float32   { return float32(w&0xffffff) * 0x1p-24 }
func unit64(w uint64) float64 { return float64(w&(1<<53-1)) * 0x1p-53 }
func bf16(x float32) float32  { return dtype.F32(dtype.BF16(x)) }

// fma32 is a*b+c with one rounding. The product is exact in float64. The sum is rounded there and again to float32,
// which can go wrong only if the first rounding ends on the middle between two float32.
func fma32(a, b, c float32) float32 {
	p := float64(a) * float64(b)
	s := p + float64(c)
	if math.Float64bits(s)&(1<<29-1) != 1<<28 {
		return float32(s)
	}
	return roundMiddle(s, p, float64(c))
}

// roundMiddle rounds a+b to float32 where s, the sum as float64, lies in the middle: the part that s lost decides
// (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums", 2008).
func roundMiddle(s, a, b float64) float32 {
	v := s - a
	if lost := (a - (s - v)) + (b - v); lost != 0 {
		s = math.Nextafter(s, math.Copysign(math.Inf(1), lost))
	}
	return float32(s)
}

// TruncNormal is torch.nn.init.trunc_normal_ of a float32 tensor: a uniform draw through the inverse error
// function, clamped to [a, b]. PyTorch takes erfinv from Intel MKL, whose result is not always the float32 nearest
// to the true one; here it is. So 1 value in 170 differs in its last place: by one unit, rarely by two.
func (g *Torch) TruncNormal(dst []float32, mean, std, a, b float64) {
	t := newTruncated(mean, std, a, b)
	for i := range dst {
		dst[i] = t.value(g.Uint32())
	}
}

// TruncNormalBF16 is trunc_normal_ of a bfloat16 tensor, which is rounded after every step.
func (g *Torch) TruncNormalBF16(dst []uint16, mean, std, a, b float64) {
	lo, hi := normalCDF((a-mean)/std), normalCDF((b-mean)/std)
	g.UniformBF16(dst, 2*lo-1, 2*hi-1)
	for i, u := range dst {
		x := bf16(float32(erfinv(float64(dtype.F32(u)), fineTable())))
		x = bf16(x * float32(std*math.Sqrt2))
		x = bf16(x + float32(mean))
		dst[i] = dtype.BF16(min(max(x, float32(a)), float32(b)))
	}
}

// truncated is trunc_normal_'s map from a draw to a value.
type truncated struct {
	uniform           uniform
	scale, mean, a, b float32
	table             *segments // fineTable
}

func newTruncated(mean, std, a, b float64) truncated {
	lo, hi := normalCDF((a-mean)/std), normalCDF((b-mean)/std)
	return truncated{newUniform(2*lo-1, 2*hi-1), float32(std * math.Sqrt2), float32(mean), float32(a), float32(b), fineTable()}
}

func (t *truncated) value(w uint32) float32 {
	x := float32(erfinv(float64(t.uniform.value(w)), t.table))
	x = float32(x*t.scale) + t.mean
	if x < t.a {
		return t.a
	}
	if x > t.b {
		return t.b
	}
	return x
}

// erfinv is the inverse error function for |x| <= 1, by [fineTable].
func erfinv(x float64, fine *segments) float64 {
	y := math.Abs(x)
	switch p := (1 - y) / 2; {
	case y == 1:
		return math.Copysign(math.Inf(1), x)
	case y < 0x1p-5 || y > 1-0x1p-24: // the table is precise to its largest values, and begins at 2^-33
		y = upperQuantile(p)
	default:
		y = fine.fine(p * 0x1p33)
	}
	return math.Copysign(y*(1/math.Sqrt2), x)
}

func normalCDF(z float64) float64 {
	if z < 0 {
		return upperTail(-z)
	}
	return 1 - upperTail(z)
}
