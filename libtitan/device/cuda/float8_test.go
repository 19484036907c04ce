package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cpu"
	"titan/libtitan/dtype"
)

var float8Types = []dtype.DType{dtype.Float8E4M3FN, dtype.Float8E5M2}

// scales is how many scales a matrix has.
func (s Scaling) scales(rows, width int) int { return [...]int{1, rows, width}[s] }

// uneven values reach over many powers of 2, with zeros, and with NaN and infinity where odd says so.
func uneven(kind dtype.DType, n int, odd bool) []float64 {
	r := rand.New(rand.NewPCG(uint64(n), 3))
	x := values(kind, 5, n, 1)
	for i := range x {
		x[i] = math.Ldexp(x[i], r.IntN(24)-12)
		if r.IntN(50) == 0 {
			x[i] = 0
		}
	}
	if odd {
		x[n/3], x[n/2], x[n-1] = math.Inf(-1), math.NaN(), math.Inf(1)
	}
	return x
}

func (e *Engine) bytes(t testing.TB, p Ptr, n int) []byte {
	require.NoError(t, e.Stream.Sync())
	out := make([]byte, n)
	require.NoError(t, e.Download(out, p))
	return out
}

// sameFloat8 requires the bits of float8 numbers; of NaNs, only that they are.
func sameFloat8(t *testing.T, kind dtype.DType, want, got []byte, what string) {
	t.Helper()
	values := kind.Float8Table()
	for i := range want {
		if a, b := values[want[i]], values[got[i]]; want[i] != got[i] && (a == a || b == b) {
			require.Failf(t, "other bits", "%s: element %d of %d: want %#x (%g), got %#x (%g)", what, i, len(want), want[i], a, got[i], b)
		}
	}
}

func sameFloats(t *testing.T, want []float32, got []float64, what string) {
	t.Helper()
	for i, v := range want {
		if g := float32(got[i]); math.Float32bits(v) != math.Float32bits(g) && (v == v || g == g) {
			require.Failf(t, "other bits", "%s: %d of %d: want %g, got %g", what, i, len(want), v, g)
		}
	}
}

// Magnitudes, scales and casts have the bits of the host's, straight and turned, whatever shares a scale; so of zeros, infinities
// and NaNs.
func TestFloat8Cast(t *testing.T) {
	host, err := cpu.New(cpu.Options{})
	require.NoError(t, err)
	for _, size := range [][2]int{{16, 16}, {128, 128}, {48, 144}, {528, 272}, {80, 1040}} {
		rows, width := size[0], size[1]
		for _, per := range []Scaling{PerTensor, PerRow, PerColumn} {
			each(t, fmt.Sprint(size, per), func(t *testing.T, kind dtype.DType) {
				for _, name := range []string{"uneven", "odd", "zeros"} {
					e := gpu(t)
					x := put(t, e, kind, make([]float64, rows*width))
					if name != "zeros" {
						x = put(t, e, kind, uneven(kind, rows*width, name == "odd"))
					}
					n := per.scales(rows, width)
					amax, inverse := blank(t, e, dtype.Float32, n), blank(t, e, dtype.Float32, n)
					wantAmax := make([]float32, n)
					host.Amax(wantAmax, floats(x.host), rows, width, cpu.Scaling(per))
					for range 2 {
						does(t)(e.Amax(kind, amax.p, x.p, rows, width, per))
						sameFloats(t, wantAmax, amax.get(), name+" amax")
					}
					for _, to := range float8Types {
						q, turned := e.take(t, rows*width), e.take(t, rows*width)
						want := cpu.Float8Matrix{Type: to, Q: make([]byte, rows*width), Turned: make([]byte, rows*width), Inverse: make([]float32, n), Per: cpu.Scaling(per)}
						for copies := 1; copies < 4; copies++ {
							m, power2 := Float8{Type: to, Inverse: inverse.p, Per: per}, copies == 2
							if copies&1 > 0 {
								m.Q = q
							}
							if copies&2 > 0 {
								m.Turned = turned
							}
							require.NoError(t, e.Stream.Set(q, 0x55, rows*width))
							require.NoError(t, e.Stream.Set(turned, 0x55, rows*width))
							does(t)(e.Float8Cast(m, kind, x.p, amax.p, rows, width, power2))
							host.Float8Cast(want, floats(x.host), wantAmax, rows, width, power2)
							what := fmt.Sprint(name, " ", to, " copies ", copies)
							sameFloats(t, want.Inverse, inverse.get(), what+" inverse")
							if m.Q != 0 {
								sameFloat8(t, to, want.Q, e.bytes(t, q, rows*width), what+" straight")
							}
							if m.Turned != 0 {
								sameFloat8(t, to, want.Turned, e.bytes(t, turned, rows*width), what+" turned")
							}
						}
						again := e.take(t, rows*width)
						does(t)(e.Float8Turn(again, q, rows, width))
						require.Equal(t, e.bytes(t, turned, rows*width), e.bytes(t, again, rows*width), "turned later")
					}
				}
			})
		}
	}
}

// Sizes that products cannot take are refused in a line.
func TestFloat8Sizes(t *testing.T) {
	e := gpu(t)
	_, err := e.Float8Cast(Float8{Type: dtype.Float8E4M3FN, Q: 16, Turned: 32}, dtype.BFloat16, 0, 0, 40, 32, false)
	require.ErrorContains(t, err, "[40, 32]: both have to be multiples of 16")
	_, err = e.Float8Product(Float8Product{M: 16, N: 16, K: 40, A: dtype.Float8E4M3FN, B: dtype.Float8E4M3FN, Out: dtype.BFloat16}, 0, 0, 0, 0, 0)
	require.ErrorContains(t, err, "multiples of 16")
}

// Products of float8 against float64 sums, relative to the sum of magnitudes: of every pair of types and of scalings that a recipe has.
func TestFloat8Product(t *testing.T) {
	e4, e5 := dtype.Float8E4M3FN, dtype.Float8E5M2
	bf, f32 := dtype.BFloat16, dtype.Float32
	for _, size := range [][3]int{{16, 16, 16}, {64, 96, 128}, {272, 144, 1024}, {128, 64, 8192}} {
		for _, p := range []Float8Product{
			{A: e4, B: e4, Out: bf, Fast: true}, {A: e4, B: e4, Out: f32, Fast: true}, {A: e5, B: e4, Out: bf}, {A: e5, B: e4, Out: f32}, {A: e4, B: e5, Out: f32},
			{A: e4, B: e4, Out: bf, RowsA: true, RowsB: true, Fast: true}, {A: e4, B: e4, Out: bf, RowsA: true, RowsB: true}, {A: e4, B: e4, Out: f32, RowsA: true, RowsB: true},
			{A: e4, B: e4, Out: bf, RowsA: true}, {A: e4, B: e4, Out: f32, RowsB: true},
		} {
			p.M, p.N, p.K = size[0], size[1], size[2]
			t.Run(fmt.Sprintf("%+v", p), func(t *testing.T) { checkFloat8Product(t, p) })
		}
	}
}

func checkFloat8Product(t *testing.T, p Float8Product) {
	e := gpu(t)
	a, aInverse, wideA := float8Operand(t, e, p.A, p.M, p.K, p.RowsA)
	b, bInverse, wideB := float8Operand(t, e, p.B, p.N, p.K, p.RowsB)
	c := blank(t, e, p.Out, p.M*p.N)
	does(t)(e.Float8Product(p, c.p, a, aInverse, b, bInverse))
	times := 1.0
	if p.Out == dtype.Float32 {
		p.Add, times = true, 2
		does(t)(e.Float8Product(p, c.p, a, aInverse, b, bInverse))
	}
	// Tensor cores add in few bits: 13 where all of a fast sum stays there.
	allowed := 2e-4
	if p.Fast {
		allowed = 2e-3
	}
	got, worst := c.get(), 0.0
	for i := range p.M {
		for j := range p.N {
			var want, size float64
			for k := range p.K {
				x := wideA[i*p.K+k] * wideB[j*p.K+k]
				want, size = want+x, size+math.Abs(x)
			}
			d := math.Abs(got[i*p.N+j] - times*want)
			if p.Out == dtype.BFloat16 {
				d = max(0, d-0x1p-8*math.Abs(want))
			}
			require.False(t, math.IsNaN(d), "[%d, %d]", i, j)
			if size > 0 {
				worst = max(worst, d/(times*size))
			}
		}
	}
	t.Logf("largest difference %.2g of the sum of magnitudes, allowed %.2g", worst, allowed)
	require.LessOrEqual(t, worst, allowed)
}

// float8Operand is random numbers made float8, the reciprocals of their scales, and what they stand for.
func float8Operand(t *testing.T, e *Engine, kind dtype.DType, rows, width int, byRow bool) (q, inverse Ptr, wide []float64) {
	per := PerTensor
	if byRow {
		per = PerRow
	}
	x := random(t, e, dtype.BFloat16, uint64(rows+width), rows*width)
	n := per.scales(rows, width)
	amax, inv := blank(t, e, dtype.Float32, n), blank(t, e, dtype.Float32, n)
	q = e.take(t, rows*width)
	does(t)(e.Amax(dtype.BFloat16, amax.p, x.p, rows, width, per))
	does(t)(e.Float8Cast(Float8{Type: kind, Q: q, Inverse: inv.p, Per: per}, dtype.BFloat16, x.p, amax.p, rows, width, false))
	scales, values := inv.get(), kind.Float8Table()
	for i, b := range e.bytes(t, q, rows*width) {
		at := 0
		if byRow {
			at = i / width
		}
		wide = append(wide, float64(values[b])*scales[at])
	}
	return q, inv.p, wide
}
