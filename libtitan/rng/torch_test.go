package rng

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// torchCase is one draw from PyTorch 2.11's CPU generator: bit patterns in hex, 4, 8 or 16 digits a value, or
// integers, and what random_(0, 2**32) gave right after.
type torchCase struct {
	Seed   uint64
	N      int
	Bits   string
	Values []int64
	Then   int64 `json:"then_random_0_2pow32"`
}

func torchCases(t *testing.T) map[string]json.RawMessage {
	raw, err := os.ReadFile("testdata/torch_2.11_cpu.json")
	require.NoError(t, err)
	var f struct {
		Native struct{ Cases map[string]json.RawMessage }
	}
	require.NoError(t, json.Unmarshal(raw, &f))
	return f.Native.Cases
}

// values runs f on n zero values and gives what it left there as bit patterns.
func values[T any](n int, format string, bits func(T) uint64, f func([]T)) string {
	v := make([]T, n)
	f(v)
	s := ""
	for _, x := range v {
		s += fmt.Sprintf(format, bits(x))
	}
	return s
}

func float32s(n int, f func([]float32)) string {
	return values(n, "%08x", func(x float32) uint64 { return uint64(math.Float32bits(x)) }, f)
}

func float64s(n int, f func([]float64)) string {
	return values(n, "%016x", math.Float64bits, f)
}

func bfloat16s(n int, f func([]uint16)) string {
	return values(n, "%04x", func(x uint16) uint64 { return uint64(x) }, f)
}

func TestTorchCases(t *testing.T) {
	rand := func(g *Torch, n int) string { return float32s(n, func(v []float32) { g.Uniform(v, 0, 1) }) }
	randn := func(g *Torch, n int) string { return float32s(n, func(v []float32) { g.Normal(v, 0, 1) }) }
	randn64 := func(g *Torch, n int) string { return float64s(n, func(v []float64) { g.Normal64(v, 0, 1) }) }
	randnBF16 := func(g *Torch, n int) string { return bfloat16s(n, func(v []uint16) { g.NormalBF16(v, 0, 1) }) }
	uniform := func(lo, hi float64) func(g *Torch, n int) string {
		return func(g *Torch, n int) string { return float32s(n, func(v []float32) { g.Uniform(v, lo, hi) }) }
	}
	xavier := math.Sqrt(6.0 / (8 + 8))
	floats := map[string]func(g *Torch, n int) string{
		"rand16_seed42": rand, "rand16_seed0": rand,
		"randn16_seed42": randn, "randn16_seed0": randn, "randn64_seed42": randn, "randn64_seed0": randn,
		"randn1": randn, "randn7": randn, "randn15": randn, "randn17": randn, "randn20": randn, "randn33": randn, "randn100": randn,
		"randn8_f64": randn64, "randn16_f64": randn64, "randn33_f64": randn64,
		"randn15_bf16": randnBF16, "randn16_bf16": randnBF16, "randn64_bf16": randnBF16,
		"rand16_f64":  func(g *Torch, n int) string { return float64s(n, func(v []float64) { g.Uniform64(v, 0, 1) }) },
		"rand16_bf16": func(g *Torch, n int) string { return bfloat16s(n, func(v []uint16) { g.UniformBF16(v, 0, 1) }) },
		"normal_mean1_std0.02_n40": func(g *Torch, n int) string {
			return float32s(n, func(v []float32) { g.Normal(v, 1, 0.02) })
		},
		"uniform_-3_5_n24":   uniform(-3, 5),
		"xavier_uniform_8x8": uniform(-xavier, xavier),
		"trunc_normal_200_std0.02_bf16_direct": func(g *Torch, n int) string {
			return bfloat16s(n, func(v []uint16) { g.TruncNormalBF16(v, 0, 0.02, -2, 2) })
		},
		"trunc_normal_1000_std0.02_via_f32_then_bf16": func(g *Torch, n int) string {
			return bfloat16s(n, func(v []uint16) {
				f := make([]float32, len(v))
				g.TruncNormal(f, 0, 0.02, -2, 2)
				dtype.NarrowBF16(v, f)
			})
		},
	}
	each := func(draw func(*Torch) int64) func(g *Torch, n int) []int64 {
		return func(g *Torch, n int) []int64 {
			v := make([]int64, n)
			for i := range v {
				v[i] = draw(g)
			}
			return v
		}
	}
	word := each(func(g *Torch) int64 { return g.Int63n(1 << 32) })
	ints := map[string]func(g *Torch, n int) []int64{
		"random_0_2pow32_16_seed42": word, "random_0_2pow32_16_seed0": word,
		"random_i64_8":        each((*Torch).Int63),
		"randint_0_128256_16": each(func(g *Torch) int64 { return g.Int63n(128256) }),
		"randperm_20":         (*Torch).Perm,
	}
	for name, raw := range torchCases(t) {
		t.Run(name, func(t *testing.T) {
			var c torchCase
			require.NoError(t, json.Unmarshal(raw, &c))
			g := NewTorch(c.Seed)
			switch {
			case floats[name] != nil:
				require.Equal(t, c.Bits, floats[name](g, c.N))
			case ints[name] != nil:
				require.Equal(t, c.Values, ints[name](g, c.N))
			default: // TestTorchTruncNormal and TestTorchSequence have the others
				require.Regexp(t, "^trunc_normal_10|^sequence", name)
				return
			}
			require.Equal(t, c.Then, g.Int63n(1<<32), "the draws taken")
		})
	}
}

// PyTorch's erfinv is MKL's, which misses the nearest float32 in under 1 % of the cases, by one unit.
func TestTorchTruncNormal(t *testing.T) {
	all := torchCases(t)
	for name, p := range map[string]struct{ std, cut float64 }{
		"trunc_normal_1000_std0.02_a-2_b2":       {0.02, 2},
		"trunc_normal_1000_std0.02_a-3std_b3std": {0.02, 0.06},
		"trunc_normal_100_std1_a-2_b2":           {1, 2},
	} {
		var c torchCase
		require.NoError(t, json.Unmarshal(all[name], &c))
		g := NewTorch(c.Seed)
		got := make([]float32, c.N)
		g.TruncNormal(got, 0, p.std, -p.cut, p.cut)
		off := 0
		for i, x := range got {
			want, err := strconv.ParseUint(c.Bits[8*i:8*i+8], 16, 32)
			require.NoError(t, err)
			ulps := int64(want) - int64(math.Float32bits(x))
			require.LessOrEqual(t, max(ulps, -ulps), int64(1), "%s value %d: %x, want %x", name, i, math.Float32bits(x), want)
			if ulps != 0 {
				off++
			}
		}
		require.LessOrEqual(t, off, 3+c.N/100, name)
		require.Equal(t, c.Then, g.Int63n(1<<32), name)
	}
}

func TestTorchSequence(t *testing.T) {
	var want map[string]string
	require.NoError(t, json.Unmarshal(torchCases(t)["sequence_seed42"], &want))
	g := NewTorch(42)
	require.Equal(t, want["1_rand16"], float32s(16, func(v []float32) { g.Uniform(v, 0, 1) }))
	for _, c := range []struct {
		name string
		n    int
	}{{"2_randn16", 16}, {"3_randn64", 64}, {"4_randn5", 5}} {
		require.Equal(t, want[c.name], float32s(c.n, func(v []float32) { g.Normal(v, 0, 1) }), c.name)
	}
	g.TruncNormal(make([]float32, 100), 0, 0.02, -2, 2)
	require.Equal(t, want["6_randn3"], float32s(3, func(v []float32) { g.Normal(v, 0, 1) }), "with the value that randn5 left")
	require.Equal(t, want["7_rand3"], float32s(3, func(v []float32) { g.Uniform(v, 0, 1) }))
}
