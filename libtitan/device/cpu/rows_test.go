package cpu

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
)

var widths = []int{1, 3, 7, 8, 9, 16, 31, 64, 130}

// TestExp2 holds 2^(mul*x-sub) to 2 units in the last place plus what rounding the exponent to float32 costs.
func TestExp2(t *testing.T) {
	for _, k := range availableKernels() {
		worst := 0.0
		x, y := make([]float32, 4096), make([]float32, 4096)
		for _, sub := range []float32{0, 3.25, -20} {
			for i := range x {
				x[i] = (float32(i)/4096 - 0.75) * 120
			}
			sum := k.exp2(y, x, math.Log2E, sub)
			var want float64
			for i, v := range x {
				e := float64(float32(math.Log2E))*float64(v) - float64(sub)
				w := math.Exp2(e)
				want += w
				if e < -126 {
					require.LessOrEqual(t, float64(y[i]), 1.2e-38)
					continue
				}
				worst = max(worst, math.Abs(float64(y[i])/w-1)/(0x1p-23*(2+math.Abs(e)/2)))
			}
			require.InEpsilon(t, want, sum, 1e-5)
		}
		require.Less(t, worst, 1.0, k.name)
	}
}

func TestExp2Limits(t *testing.T) {
	inf, nan := float32(math.Inf(1)), float32(math.NaN())
	for _, k := range availableKernels() {
		x := []float32{-inf, -200, -127, 0, 1, nan, 127, -0, 5}
		y := make([]float32, len(x))
		k.exp2(y, x, 1, 0)
		require.Equal(t, []float32{0, 0, y[2], 1, 2}, y[:5], k.name)
		require.True(t, y[5] != y[5], k.name)
		require.Equal(t, []float32{0x1p127, 1, 32}, y[6:], k.name)
	}
}

// TestSigmoid: silu(a)*1 is within 3 units in the last place of a/(1+exp(-a)), far out too; at infinity sigmoid is 0 or 1.
func TestSigmoid(t *testing.T) {
	for _, k := range availableKernels() {
		for a := -100.0; a < 100; a += 0.37 {
			x, y := []float32{float32(a)}, make([]float32, 1)
			k.silu(y, x, []float32{1})
			want := float64(x[0]) / (1 + math.Exp(-float64(x[0])))
			require.InDelta(t, want, y[0], 3*0x1p-23*math.Abs(want)+1e-36, "%s silu(%g)", k.name, a)
		}
		inf, nan := float32(math.Inf(1)), float32(math.NaN())
		y := []float32{-inf, inf, 0, nan}
		k.sigmoid(y, y)
		require.Equal(t, []float32{0, 1, 0.5}, y[:3], k.name)
		require.True(t, y[3] != y[3], k.name)
	}
}

func TestRMSNorm(t *testing.T) {
	for _, e := range engines(1, 2) {
		for _, dim := range widths {
			for _, rows := range []int{0, 1, 2 * rowGrain, 2*rowGrain + 5} {
				checkRMSNorm(t, e, rows, dim)
			}
		}
	}
}

func checkRMSNorm(t *testing.T, e *Engine, rows, dim int) {
	name := fmt.Sprint(e.k.name, " rows ", rows, " dim ", dim)
	x, w, dy := random(1, rows*dim), random(2, dim), random(3, rows*dim)
	wantY, wantDX, wantDW := make([]float64, rows*dim), make([]float64, rows*dim), make([]float64, dim)
	for i := range rows {
		var sq, gx float64
		for j := range dim {
			v := float64(x[i*dim+j])
			sq += v * v
			gx += v * float64(w[j]) * float64(dy[i*dim+j])
		}
		r := 1 / math.Sqrt(sq/float64(dim)+1e-5)
		for j := range dim {
			v, g := float64(x[i*dim+j]), float64(dy[i*dim+j])
			wantY[i*dim+j] = v * r * float64(w[j])
			wantDX[i*dim+j] = r*g*float64(w[j]) - v*r*r*r*gx/float64(dim)
			wantDW[j] += g * v * r
		}
	}
	y, rstd, dx, dw := make([]float32, rows*dim), make([]float32, rows), make([]float32, rows*dim), random(4, dim)
	e.RMSNorm(y, rstd, x, w, rows, dim, 1e-5)
	near(t, wantY, y, 1e-6, name)
	e.RMSNormBackward(dx, dw, dy, x, w, rstd, rows, dim, false)
	near(t, wantDX, dx, 1e-4, name) // dim 1 cancels wholly
	near(t, wantDW, dw, 2e-5, name)
	e.RMSNormBackward(dx, dw, dy, x, w, rstd, rows, dim, true)
	for j := range wantDW {
		wantDW[j] *= 2
	}
	near(t, wantDW, dw, 2e-5, name)

	yh := make([]uint16, rows*dim)
	e.RMSNormBF16(yh, rstd, bf16(x), bf16(w), rows, dim, 1e-5)
	near(t, wantY, fromBF16(yh), 2e-2, name)
	e.RMSNormBackwardBF16(yh, dw, bf16(dy), bf16(x), bf16(w), rstd, rows, dim, false)
	near(t, wantDX, fromBF16(yh), 1e-1, name)
}

// TestRMSNormBits: neither threads nor the rows around it change a row.
func TestRMSNormBits(t *testing.T) {
	const rows, dim = 333, 72
	x, w, dy := random(1, rows*dim), random(2, dim), random(3, rows*dim)
	var first [][]float32
	for _, threads := range []int{1, 2, 9} {
		e := &Engine{threads: threads, k: bestKernels()}
		y, rstd, dx, dw := make([]float32, rows*dim), make([]float32, rows), make([]float32, rows*dim), make([]float32, dim)
		e.RMSNorm(y, rstd, x, w, rows, dim, 1e-5)
		e.RMSNormBackward(dx, dw, dy, x, w, rstd, rows, dim, false)
		got := [][]float32{y, rstd, dx, dw}
		if first == nil {
			first = got
		}
		for i := range got {
			sameBits(t, first[i], got[i])
		}
	}
}

func TestRope(t *testing.T) {
	for _, e := range engines(1, 2) {
		for _, h := range []int{2, 6, 8, 16, 20, 64} {
			const b, s, n = 2, 37, 3
			x, cos, sin := random(1, b*s*n*h), make([]float32, s*h/2), make([]float32, s*h/2)
			for i := range cos {
				cos[i], sin[i] = float32(math.Cos(float64(i))), float32(math.Sin(float64(i)))
			}
			want := f64(x)
			for i := range len(x) / 2 {
				at := i/(n*h/2)%s*(h/2) + i%(h/2)
				c, sn := float64(cos[at]), float64(sin[at])
				want[2*i], want[2*i+1] = want[2*i]*c-want[2*i+1]*sn, want[2*i+1]*c+want[2*i]*sn
			}
			y, back := make([]float32, len(x)), make([]float32, len(x))
			e.Rope(y, x, cos, sin, b, s, n, h, false)
			near(t, want, y, 1e-6, e.k.name, h)
			e.Rope(back, y, cos, sin, b, s, n, h, true)
			near(t, f64(x), back, 1e-6, e.k.name, h)
			yh := bf16(x)
			e.RopeBF16(yh, yh, cos, sin, b, s, n, h, false)
			near(t, want, fromBF16(yh), 2e-2, e.k.name, h)
		}
	}
}

func TestSwiGLU(t *testing.T) {
	for _, e := range engines(1, 2) {
		for _, n := range []int{0, 1, 7, 8, 100, 2*flatGrain + 3} {
			a, b, dy := random(1, n), random(2, n), random(3, n)
			want, wantA, wantB := make([]float64, n), make([]float64, n), make([]float64, n)
			for i := range n {
				x, s := float64(a[i]), 1/(1+math.Exp(-float64(a[i])))
				want[i] = x * s * float64(b[i])
				wantA[i] = float64(dy[i]) * float64(b[i]) * s * (1 + x*(1-s))
				wantB[i] = float64(dy[i]) * x * s
			}
			y, da, db := make([]float32, n), make([]float32, n), make([]float32, n)
			e.SwiGLU(y, a, b)
			near(t, want, y, 1e-6, e.k.name)
			e.SwiGLUBackward(da, db, dy, a, b)
			near(t, wantA, da, 1e-6, e.k.name)
			near(t, wantB, db, 1e-6, e.k.name)
			yh := make([]uint16, n)
			e.SwiGLUBF16(yh, bf16(a), bf16(b))
			near(t, want, fromBF16(yh), 3e-2, e.k.name)
			ah, bh := bf16(a), bf16(b)
			e.SwiGLUBackwardBF16(ah, bh, bf16(dy), ah, bh) // in place
			near(t, wantA, fromBF16(ah), 5e-2, e.k.name)
			near(t, wantB, fromBF16(bh), 5e-2, e.k.name)
			e.SwiGLUBackward(a, b, dy, a, b)
			sameBits(t, da, a)
			sameBits(t, db, b)
		}
	}
}

func TestAdd(t *testing.T) {
	for _, e := range engines(1, 2) {
		for _, n := range []int{0, 5, 8, flatGrain + 9} {
			a, b, c := random(1, n), random(2, n), random(3, n)
			want, wantH := make([]float64, n), make([]float32, n)
			for i := range n {
				want[i] = float64(a[i] + b[i] + c[i])
				wantH[i] = dtype.F32(dtype.BF16(a[i])) + dtype.F32(dtype.BF16(b[i])) + dtype.F32(dtype.BF16(c[i]))
			}
			h := bf16(a)
			e.AddBF16(h, h, bf16(b), bf16(c))
			sameBits(t, bf16(wantH), h)
			e.Add(a, a, b, c)
			near(t, want, a, 0)
			e.Add(a, c)
			sameBits(t, c, a)
		}
	}
}

// TestBF16Conversion: the vector forms are dtype's, for every bit pattern's rounding and for NaN.
func TestBF16Conversion(t *testing.T) {
	for _, e := range engines(1) {
		rapid.Check(t, func(t *rapid.T) {
			bits := rapid.SliceOfN(rapid.Uint32(), 0, 40).Draw(t, "bits")
			x := make([]float32, len(bits))
			for i, b := range bits {
				x[i] = math.Float32frombits(b)
			}
			y := make([]uint16, len(x))
			e.Narrow(y, x)
			require.Equal(t, bf16(x), y, e.k.name)
			back := make([]float32, len(x))
			e.Widen(back, y)
			for i := range y {
				require.Equal(t, uint32(y[i])<<16, math.Float32bits(back[i]))
			}
		})
	}
}

func TestSumSquares(t *testing.T) {
	for _, n := range []int{0, 1, 5, 3*flatGrain + 7} {
		x := random(1, n)
		var want float64
		for _, v := range x {
			want += float64(v) * float64(v)
		}
		for _, e := range engines(1, 2, 3) {
			got := e.SumSquares(x)
			require.InDelta(t, want, got, 1e-12*(1+want))
			require.Equal(t, (&Engine{threads: 7, k: e.k}).SumSquares(x), got)
		}
	}
}
