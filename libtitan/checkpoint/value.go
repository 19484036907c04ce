package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"

	"titan/libtitan/dtype"
)

// minifloat is the layout of a float of 8 or 16 bits: a sign, exponent bits with a bias, mantissa bits.
type minifloat struct {
	exp, man, bias int
	inf            bool // IEEE's infinities and NaNs; else only the NaNs that [minifloat.nan] knows
	fnuz           bool // no negative zero: its pattern is the NaN
}

var minifloats = map[dtype.DType]minifloat{
	dtype.Float16:        {exp: 5, man: 10, bias: 15, inf: true},
	dtype.BFloat16:       {exp: 8, man: 7, bias: 127, inf: true},
	dtype.Float8E4M3FN:   {exp: 4, man: 3, bias: 7},
	dtype.Float8E5M2:     {exp: 5, man: 2, bias: 15, inf: true},
	dtype.Float8E4M3FNUZ: {exp: 4, man: 3, bias: 8, fnuz: true},
	dtype.Float8E5M2FNUZ: {exp: 5, man: 2, bias: 16, fnuz: true},
}

// decode widens a pattern exactly.
func (m minifloat) decode(bits uint64) float64 {
	sign := 1.0
	magnitude := bits & (1<<(m.exp+m.man) - 1)
	if bits != magnitude {
		sign = -1
	}
	e, f := int(magnitude>>m.man), float64(magnitude&(1<<m.man-1))
	switch {
	case m.fnuz && sign < 0 && magnitude == 0, !m.fnuz && !m.inf && magnitude == 1<<(m.exp+m.man)-1:
		return math.NaN()
	case m.inf && e == 1<<m.exp-1 && f != 0:
		return math.NaN()
	case m.inf && e == 1<<m.exp-1:
		return math.Inf(int(sign))
	case e == 0:
		return sign * math.Ldexp(f, 1-m.bias-m.man)
	}
	return sign * math.Ldexp(f+float64(uint64(1)<<m.man), e-m.bias-m.man)
}

// bitsOf is the pattern of a little-endian element of up to 8 bytes.
func bitsOf(b []byte) uint64 {
	var wide [8]byte
	copy(wide[:], b)
	return binary.LittleEndian.Uint64(wide[:])
}

// number is a real element as a float64: exact for all types but 64-bit integers. Complex and packed types are no
// numbers here.
func number(dt dtype.DType, b []byte) (float64, bool) {
	bits := bitsOf(b)
	if m, ok := minifloats[dt]; ok {
		return m.decode(bits), true
	}
	switch dt {
	case dtype.Float32:
		return float64(math.Float32frombits(uint32(bits))), true
	case dtype.Float64:
		return math.Float64frombits(bits), true
	case dtype.Float8E8M0FNU:
		if bits == 0xff {
			return math.NaN(), true
		}
		return math.Ldexp(1, int(bits)-127), true
	case dtype.Int64, dtype.Int32, dtype.Int16, dtype.Int8:
		return float64(signed(bits, dt)), true
	case dtype.UInt64, dtype.UInt32, dtype.UInt16, dtype.UInt8, dtype.Bool:
		return float64(bits), true
	}
	return 0, false
}

func signed(bits uint64, dt dtype.DType) int64 {
	shift := 64 - 8*dt.Size()
	return int64(bits<<shift) >> shift
}

// formatElement spells an element as Python would, or in hexadecimal where it is no number.
func formatElement(dt dtype.DType, b []byte) string {
	switch dt {
	case dtype.Bool:
		return map[bool]string{true: "True", false: "False"}[b[0] != 0]
	case dtype.Int64, dtype.Int32, dtype.Int16, dtype.Int8:
		return strconv.FormatInt(signed(bitsOf(b), dt), 10)
	case dtype.UInt64, dtype.UInt32, dtype.UInt16, dtype.UInt8:
		return strconv.FormatUint(bitsOf(b), 10)
	case dtype.Complex32, dtype.Complex64, dtype.Complex128:
		half := map[dtype.DType]dtype.DType{dtype.Complex32: dtype.Float16, dtype.Complex64: dtype.Float32, dtype.Complex128: dtype.Float64}[dt]
		re, im := formatElement(half, b[:len(b)/2]), formatElement(half, b[len(b)/2:])
		if im[0] != '-' {
			im = "+" + im
		}
		return re + im + "j"
	}
	x, ok := number(dt, b)
	if !ok {
		return fmt.Sprintf("0x%x", b)
	}
	return formatFloat(x, dt)
}

// formatFloat is the shortest decimal that tells x from its neighbours in float32, or in float64 for that type.
func formatFloat(x float64, dt dtype.DType) string {
	switch {
	case math.IsNaN(x):
		return "nan"
	case math.IsInf(x, 0):
		return map[bool]string{true: "inf", false: "-inf"}[x > 0]
	case dt == dtype.Float64:
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	return strconv.FormatFloat(x, 'g', -1, 32)
}

// distance is how far the elements a and b, which are x and y, lie apart. 64-bit integers are subtracted as such.
func distance(dt dtype.DType, a, b []byte, x, y float64) float64 {
	p, q := bitsOf(a), bitsOf(b)
	switch {
	case dt == dtype.Int64 && int64(p) < int64(q), dt == dtype.UInt64 && p < q:
		return float64(q - p)
	case dt == dtype.Int64, dt == dtype.UInt64:
		return float64(p - q)
	}
	return math.Abs(x - y)
}

// ulps is how many values of the type lie from one pattern to another, counting the second; for other types than
// floats the difference of the patterns says nothing and 0 comes out.
func ulps(dt dtype.DType, a, b []byte) uint64 {
	if !dt.IsFloat() || dt.Size() > 8 {
		return 0
	}
	x, y := ordered(dt, bitsOf(a)), ordered(dt, bitsOf(b))
	if x > y {
		x, y = y, x
	}
	return uint64(y) - uint64(x)
}

// ordered maps patterns to integers in the order of the values; both zeros are 0.
func ordered(dt dtype.DType, bits uint64) int64 {
	sign := uint64(1) << (8*dt.Size() - 1)
	if dt == dtype.Float8E8M0FNU || bits&sign == 0 {
		return int64(bits)
	}
	return -int64(bits &^ sign)
}
