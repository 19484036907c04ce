package checkpoint

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

var castTypes = []dtype.DType{dtype.Float64, dtype.Float32, dtype.Float16, dtype.BFloat16}

func cast1(from, to dtype.DType, src []byte) []byte {
	dst := make([]byte, to.Size())
	newCaster(from, to)(dst, src)
	return dst
}

// A cast gives the nearest value of the type, and of two that are as near the even one.
func TestCastsRoundToNearestEven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		from := rapid.SampledFrom(castTypes[:3]).Draw(t, "from")
		to := rapid.SampledFrom([]dtype.DType{dtype.Float16, dtype.BFloat16}).Draw(t, "to")
		drawn := rapid.Float64Range(-70000, 70000).Draw(t, "x")
		src := cast1(dtype.Float64, from, binary.LittleEndian.AppendUint64(nil, math.Float64bits(drawn)))
		x, _ := number(from, src)
		got := bitsOf(cast1(from, to, src))
		y, _ := number(to, binary.LittleEndian.AppendUint16(nil, uint16(got)))
		if math.IsInf(y, 0) {
			require.Greater(t, math.Abs(x), 65519.0)
			return
		}
		for _, near := range []uint64{got - 1, got + 1} {
			z, _ := number(to, binary.LittleEndian.AppendUint16(nil, uint16(near)))
			if math.IsNaN(z) || math.IsInf(z, 0) || math.Signbit(z) != math.Signbit(y) {
				continue
			}
			require.LessOrEqual(t, math.Abs(x-y), math.Abs(x-z))
			if math.Abs(x-y) == math.Abs(x-z) && y != z {
				require.Zero(t, got&1)
			}
		}
	})
}

func TestCastsOfWideTypesRoundOnce(t *testing.T) {
	f64 := func(x float64) []byte { return binary.LittleEndian.AppendUint64(nil, math.Float64bits(x)) }
	// Half a step above 1, and a bit that float32 cannot hold: rounding twice would go down to 1.
	x := 1 + 0x1p-8 + 0x1p-40
	require.Equal(t, uint64(0x3f81), bitsOf(cast1(dtype.Float64, dtype.BFloat16, f64(x))))
	require.Equal(t, uint64(0xbf81), bitsOf(cast1(dtype.Float64, dtype.BFloat16, f64(-x))))
	require.Equal(t, uint64(0x3c01), bitsOf(cast1(dtype.Float64, dtype.Float16, f64(1+0x1p-11+0x1p-45))))
	require.Equal(t, uint64(0x3f80), bitsOf(cast1(dtype.Float64, dtype.BFloat16, f64(1+0x1p-8))))
	require.Equal(t, uint64(0x7f80), bitsOf(cast1(dtype.Float64, dtype.BFloat16, f64(math.MaxFloat64))))
	nan := bitsOf(cast1(dtype.Float64, dtype.Float16, f64(math.NaN())))
	require.Equal(t, uint64(0x7e00), nan&^0x8000)
}

// Widening is exact for every pattern.
func TestNarrowTypesWidenExactly(t *testing.T) {
	for _, from := range []dtype.DType{dtype.Float16, dtype.BFloat16, dtype.Float8E4M3FN, dtype.Float8E5M2, dtype.Float8E4M3FNUZ, dtype.Float8E5M2FNUZ} {
		to32, to64 := newCaster(from, dtype.Float32), newCaster(from, dtype.Float64)
		for bits := range 1 << (8 * from.Size()) {
			src := binary.LittleEndian.AppendUint16(nil, uint16(bits))[:from.Size()]
			x, _ := number(from, src)
			var a [4]byte
			var b [8]byte
			to32(a[:], src)
			to64(b[:], src)
			y, z := math.Float32frombits(binary.LittleEndian.Uint32(a[:])), math.Float64frombits(binary.LittleEndian.Uint64(b[:]))
			require.True(t, math.IsNaN(x) && y != y && z != z || float64(y) == x && z == x, "%s %x", from, bits)
		}
	}
}

func TestParseCast(t *testing.T) {
	dt, err := ParseCast("bf16")
	require.NoError(t, err)
	require.Equal(t, dtype.BFloat16, dt)
	for _, name := range []string{"int64", "float8_e4m3fn", "bfloat"} {
		_, err = ParseCast(name)
		require.ErrorContains(t, err, "--dtype "+name)
		require.Equal(t, int(exit.Usage), exit.Code(err))
	}
}
