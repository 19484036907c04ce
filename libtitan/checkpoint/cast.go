package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// caster turns little-endian elements of one type into another's, each rounded once, to nearest even.
type caster func(dst, src []byte)

// newCaster makes the cast between two floating types.
func newCaster(from, to dtype.DType) caster {
	switch {
	case from == dtype.Float32 && to == dtype.BFloat16:
		return narrow
	case from.Size() <= 2:
		return tableCaster(from, to)
	}
	put, size := encoder(to), to.Size()
	return func(dst, src []byte) {
		for i := 0; i*size < len(dst); i++ {
			x, _ := number(from, src[i*from.Size():][:from.Size()])
			put(dst[i*size:], x)
		}
	}
}

// narrow is the cast of training: float32 to bfloat16.
func narrow(dst, src []byte) {
	src = src[:2*len(dst)]
	for i := 0; i < len(dst); i += 2 {
		f := math.Float32frombits(binary.LittleEndian.Uint32(src[2*i:]))
		binary.LittleEndian.PutUint16(dst[i:], dtype.BF16(f))
	}
}

// tableCaster looks each pattern of an 8 or 16 bit type up.
func tableCaster(from, to dtype.DType) caster {
	in, out := from.Size(), to.Size()
	table := make([]byte, out<<(8*in))
	put := encoder(to)
	for bits := range 1 << (8 * in) {
		x, _ := number(from, binary.LittleEndian.AppendUint16(nil, uint16(bits))[:in])
		put(table[bits*out:], x)
	}
	return func(dst, src []byte) {
		for i := 0; i*out < len(dst); i++ {
			bits := int(src[i*in])
			if in == 2 {
				bits |= int(src[2*i+1]) << 8
			}
			copy(dst[i*out:(i+1)*out], table[bits*out:])
		}
	}
}

// encoder writes a number as a type that [checkCast] allows.
func encoder(to dtype.DType) func(dst []byte, x float64) {
	switch to {
	case dtype.Float64:
		return func(dst []byte, x float64) { binary.LittleEndian.PutUint64(dst, math.Float64bits(x)) }
	case dtype.Float32:
		return func(dst []byte, x float64) { binary.LittleEndian.PutUint32(dst, math.Float32bits(float32(x))) }
	case dtype.Float16:
		return func(dst []byte, x float64) { binary.LittleEndian.PutUint16(dst, dtype.F16(roundToOdd(x))) }
	}
	return func(dst []byte, x float64) { binary.LittleEndian.PutUint16(dst, dtype.BF16(roundToOdd(x))) }
}

// roundToOdd is x as a float32, whose last bit is set where it is not x itself: rounding it again gives what rounding x
// would have (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
func roundToOdd(x float64) float32 {
	f := float32(x)
	if float64(f) == x || math.IsNaN(x) {
		return f
	}
	bits := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(x) {
		bits--
	}
	return math.Float32frombits(bits | 1)
}

// castTo is the type that a tensor of type from gets when a person asks for to: integers, bools, complex numbers and
// packed floats keep theirs.
func castTo(from, to dtype.DType) dtype.DType {
	if !from.IsFloat() || from == dtype.Float4E2M1FNX2 || to == dtype.Invalid {
		return from
	}
	return to
}

// ParseCast finds the type that --dtype names; "" is none.
func ParseCast(name string) (dtype.DType, error) {
	if name == "" {
		return dtype.Invalid, nil
	}
	switch dt, err := dtype.Parse(strings.ToLower(name)); dt {
	case dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16:
		return dt, err
	}
	return dtype.Invalid, exit.Usage.Wrap(fmt.Errorf("--dtype %s: tensors are cast to float32, bfloat16, float16 or float64", name))
}
