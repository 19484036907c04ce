package checkpoint

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"strings"

	"titan/libtitan/dtype"
)

// encodeElement is the inverse of formatElement: a value that a person wrote, rounded to nearest even, as the type's
// little-endian bytes. What the type cannot hold is an error.
func encodeElement(dt dtype.DType, text string) ([]byte, error) {
	bits, err := elementBits(dt, text)
	return binary.LittleEndian.AppendUint64(nil, bits)[:min(8, dt.Size())], err
}

func elementBits(dt dtype.DType, text string) (uint64, error) {
	size := 8 * dt.Size()
	switch dt {
	case dtype.Bool:
		switch strings.ToLower(text) {
		case "true", "1":
			return 1, nil
		case "false", "0":
			return 0, nil
		}
		return 0, fmt.Errorf("%q is no bool: write True or False", text)
	case dtype.Int64, dtype.Int32, dtype.Int16, dtype.Int8:
		n, err := strconv.ParseInt(text, 10, size)
		return uint64(n), notHeld(dt, text, err)
	case dtype.UInt64, dtype.UInt32, dtype.UInt16, dtype.UInt8:
		n, err := strconv.ParseUint(text, 10, size)
		return n, notHeld(dt, text, err)
	}
	if _, ok := number(dt, make([]byte, dt.Size())); !ok {
		return 0, fmt.Errorf("elements of type %s are not edited", dt)
	}
	x, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, notHeld(dt, text, err)
	}
	return floatBits(dt, x, text)
}

// notHeld says in a person's words why a number is refused.
func notHeld(dt dtype.DType, text string, err error) error {
	if err == nil {
		return nil
	}
	if n, ok := err.(*strconv.NumError); ok && n.Err == strconv.ErrRange {
		return fmt.Errorf("%s is out of the range of %s", text, dt)
	}
	return fmt.Errorf("%q is no value of type %s", text, dt)
}

func floatBits(dt dtype.DType, x float64, text string) (uint64, error) {
	switch dt {
	case dtype.Float64:
		return math.Float64bits(x), nil
	case dtype.Float32:
		if f := float32(x); !math.IsInf(float64(f), 0) || math.IsInf(x, 0) {
			return uint64(math.Float32bits(f)), nil
		}
		return 0, fmt.Errorf("%s is out of the range of %s: write inf if that is meant", text, dt)
	}
	return narrowBits(dt, x, text)
}

// narrowBits looks for the nearest of the at most 65,536 patterns of a narrow type.
func narrowBits(dt dtype.DType, x float64, text string) (uint64, error) {
	best, nearest, largest := uint64(0), math.Inf(1), 0.0
	for bits := range uint64(1) << (8 * dt.Size()) {
		v, _ := number(dt, binary.LittleEndian.AppendUint64(nil, bits)[:dt.Size()])
		if math.IsNaN(x) && math.IsNaN(v) {
			best, nearest = canonicalNaN(dt, bits), 0
			break
		}
		if v == x && math.Signbit(v) == math.Signbit(x) {
			return bits, nil
		}
		if math.IsNaN(v) || math.IsInf(v, 0) {
			continue
		}
		largest = max(largest, v)
		away := math.Abs(v - x)
		if away < nearest || away == nearest && bits%2 == 0 && math.Signbit(v) == math.Signbit(x) {
			best, nearest = bits, away
		}
	}
	switch {
	case math.IsNaN(x) && nearest == 0:
		return best, nil
	case math.IsNaN(x) || math.IsInf(x, 0):
		return 0, fmt.Errorf("%s has no %s", dt, text)
	case math.Abs(x) > largest || dt == dtype.Float8E8M0FNU && x <= 0:
		return 0, fmt.Errorf("%s is out of the range of %s", text, dt)
	}
	return best, nil
}

// canonicalNaN is the quiet NaN that PyTorch makes, where first is the type's first pattern of a NaN.
func canonicalNaN(dt dtype.DType, first uint64) uint64 {
	if m := minifloats[dt]; m.inf {
		return first&^1 | 1<<(m.man-1) // the first has the lowest bit of the mantissa
	}
	return first
}

func littleEndian32(n uint32) (b [4]byte) {
	binary.LittleEndian.PutUint32(b[:], n)
	return b
}
