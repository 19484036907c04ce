package cpu

import (
	"fmt"
	"math"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
)

// refGemm is C (+)= op(A)·op(B) in float64, with the sum of the terms' magnitudes, which bounds the rounding error.
func refGemm(transA, transB bool, m, n, k int, a, b, c []float32, lda, ldb, ldc int, accumulate bool) []float64 {
	out := f64(c)
	for i := range m {
		for j := range n {
			var s float64
			if accumulate {
				s = float64(c[i*ldc+j])
			}
			for p := range k {
				s += float64(a[pick(transA, i, p, lda)]) * float64(b[pick(transB, p, j, ldb)])
			}
			out[i*ldc+j] = s
		}
	}
	return out
}

func pick(trans bool, i, j, ld int) int {
	if trans {
		return j*ld + i
	}
	return i*ld + j
}

func stored2(trans bool, rows, cols, pad int) (ld, size int) {
	if trans {
		rows, cols = cols, rows
	}
	return cols + pad, rows * (cols + pad)
}

// TestGemm: against float64, and the same bits from every instruction set and number of threads.
func TestGemm(t *testing.T) {
	all := engines(1, 3)
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(0, 70), rapid.SampledFrom([]int{1, 6, 12, 16, 32, 48, 97, 130}))
		m, n := size.Draw(t, "m"), size.Draw(t, "n")
		k := rapid.OneOf(size, rapid.SampledFrom([]int{255, 256, 257, 513})).Draw(t, "k")
		ta, tb, acc := rapid.Bool().Draw(t, "ta"), rapid.Bool().Draw(t, "tb"), rapid.Bool().Draw(t, "acc")
		pad := rapid.IntRange(0, 3).Draw(t, "pad")
		lda, na := stored2(ta, m, k, pad)
		ldb, nb := stored2(tb, k, n, pad)
		a, b, c0 := random(1, na), random(2, nb), random(3, m*(n+pad))
		want := refGemm(ta, tb, m, n, k, a, b, c0, lda, ldb, n+pad, acc)
		var first []float32
		for _, e := range all {
			c := append([]float32(nil), c0...)
			e.Gemm(ta, tb, m, n, k, a, b, c, lda, ldb, n+pad, acc)
			if first == nil {
				first = c
			}
			sameBits(t, first, c, e.k.name, e.threads, "threads")
		}
		for i, w := range want {
			require.InDelta(t, w, first[i], 2e-5*(1+float64(k)/64), "element %d", i)
		}
	})
}

// TestGemmPosition: an element depends on its row of A, its column of B and k alone.
func TestGemmPosition(t *testing.T) {
	const n, k = 40, 300
	a, b := random(1, 53*k), random(2, k*n)
	for _, e := range engines(2) {
		all := make([]float32, 53*n)
		e.Gemm(false, false, 53, n, k, a, b, all, k, n, n, false)
		for _, i := range []int{0, 5, 17, 47, 48, 52} {
			row := make([]float32, n)
			e.Gemm(false, false, 1, n, k, a[i*k:], b, row, k, n, n, false)
			sameBits(t, row, all[i*n:][:n], e.k.name, "row", i)
		}
	}
}

// TestGemmLarge crosses the limits of the packed part of B.
func TestGemmLarge(t *testing.T) {
	m, n, k := 2, packN+33, packK+100
	a, b := random(1, m*k), random(2, n*k)
	var first []float32
	for _, e := range engines(1, 2) {
		c := make([]float32, m*n)
		e.Gemm(false, true, m, n, k, a, b, c, k, k, n, false)
		if first == nil {
			first = c
			near(t, refGemm(false, true, m, n, k, a, b, c, k, k, n, false), c, 2e-3)
		}
		sameBits(t, first, c, e.k.name)
		c = make([]float32, m*n)
		ah, bh := bf16(a), bf16(b)
		e.GemmBF16(false, true, m, n, k, ah, bh, c, k, k, n, false)
		out := make([]uint16, m*n)
		e.GemmBF16Out(false, true, m, n, k, ah, bh, out, k, k, n)
		sameBits(t, bf16(c), out, e.k.name)
	}
}

// tilePairsGo is a tile on pairs for CPUs without the instruction, so that packing is tested everywhere.
func tilePairsGo(k int, a *float32, rs, ps int, b *float32, bs, bp int, c *float32, ldc, panels int, add bool) {
	wideA, wideB := make([]float32, 6*2*k), make([]float32, 16*2*k)
	half := func(p *float32, i, h int) float32 {
		return dtype.F32(uint16(math.Float32bits(*at(p, i)) >> (16 * h)))
	}
	for s := range 2 * k {
		for r := range 6 {
			wideA[r*2*k+s] = half(a, r*rs+s/2*ps, s&1)
		}
		for x := range 16 {
			wideB[s*16+x] = half(b, s/2*bs+x, s&1)
		}
	}
	tile6x16Go(2*k, unsafe.SliceData(wideA), 2*k, 1, unsafe.SliceData(wideB), 16, 0, c, ldc, panels, add)
}

// TestTilePairs holds the instruction to its definition.
func TestTilePairs(t *testing.T) {
	k := bestKernels()
	if k.tilePairs == nil {
		t.Skip("SKIPPED: this CPU has no AVX512_BF16: VDPBF16PS is not tested here, make gpu tests it where the host has it")
	}
	const depth = 37
	a, b, c := bf16(random(1, k.mr*2*depth)), bf16(random(2, depth*2*k.nr)), random(3, k.mr*k.nr)
	want := f64(c)
	for r := range k.mr {
		for x := range k.nr {
			for s := range depth {
				for h := range 2 {
					want[r*k.nr+x] += float64(dtype.F32(a[(r*depth+s)*2+h])) * float64(dtype.F32(b[(s*k.nr+x)*2+h]))
				}
			}
		}
	}
	k.tilePairs(depth, &pairsOf(a)[0], depth, 1, &pairsOf(b)[0], k.nr, 0, &c[0], k.nr, 1, true)
	near(t, want, c, 1e-5)
}

func TestGemmBF16(t *testing.T) {
	pairs := bestKernels()
	if pairs.tilePairs == nil {
		pairs = scalarKernels()
		pairs.name, pairs.tilePairs = "pairs in Go", tilePairsGo
	}
	for _, e := range append(engines(1, 2), &Engine{threads: 2, k: pairs}) {
		for i, s := range [][3]int{{1, 1, 1}, {13, 33, 65}, {48, 32, 256}, {49, 35, 259}, {3, 5, 2}, {0, 4, 3}, {4, 4, 0}} {
			m, n, k := s[0], s[1], s[2]
			for mode := range 8 {
				ta, tb, acc := mode&1 != 0, mode&2 != 0, mode&4 != 0
				lda, na := stored2(ta, m, k, 1)
				ldb, nb := stored2(tb, k, n, 2)
				a, b, c := bf16(random(1, na)), bf16(random(2, nb)), random(3, m*n)
				want := refGemm(ta, tb, m, n, k, fromBF16(a), fromBF16(b), c, lda, ldb, n, acc)
				name := fmt.Sprint(e.k.name, " case ", i, " mode ", mode)
				e.GemmBF16(ta, tb, m, n, k, a, b, c, lda, ldb, n, acc)
				near(t, want, c, 1e-4, name)
				if !acc {
					out := make([]uint16, m*n)
					e.GemmBF16Out(ta, tb, m, n, k, a, b, out, lda, ldb, n)
					sameBits(t, bf16(c), out, name)
				}
			}
		}
	}
}

func TestFMA32(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := rapid.Float32().Draw(t, "a"), rapid.Float32().Draw(t, "b"), rapid.Float32().Draw(t, "c")
		got, want := float32(0), float32(0)
		for _, k := range availableKernels() {
			buf, wide := make([]float32, 6*16), make([]float32, 2*16)
			wide[0], wide[16] = c, b
			av := make([]float32, 12)
			av[0], av[1] = 1, a
			k.tile6(2, &av[0], 2, 1, &wide[0], 16, 0, &buf[0], 16, 1, false)
			if k.name == "scalar" {
				want = buf[0]
			}
			got = buf[0]
			if got != got && want != want {
				continue
			}
			require.Equal(t, want, got, k.name)
		}
	})
}

func benchGemm(b *testing.B, ta, tb bool, m, n, k int) {
	e, err := New(Options{})
	require.NoError(b, err)
	lda, na := stored2(ta, m, k, 0)
	ldb, nb := stored2(tb, k, n, 0)
	x, y, c := random(1, na), random(2, nb), make([]float32, m*n)
	for b.Loop() {
		e.Gemm(ta, tb, m, n, k, x, y, c, lda, ldb, n, false)
	}
	b.ReportMetric(2*float64(m)*float64(n)*float64(k)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

func BenchmarkGemm(b *testing.B) {
	for _, n := range []int{512, 1024, 2048} {
		b.Run(fmt.Sprint(n), func(b *testing.B) { benchGemm(b, false, false, n, n, n) })
	}
	for _, s := range []struct {
		name    string
		ta, tb  bool
		m, n, k int
	}{
		{"qkv 2048x256x256", false, true, 2048, 256, 256},
		{"w1 2048x768x256", false, true, 2048, 768, 256},
		{"w2 2048x256x768", false, true, 2048, 256, 768},
		{"dX 2048x256x768", false, false, 2048, 256, 768},
		{"dW 768x256x2048", true, false, 768, 256, 2048},
		{"dW 256x256x4096", true, false, 256, 256, 4096},
		{"head 4096x2048x256", false, true, 4096, 2048, 256},
	} {
		b.Run(s.name, func(b *testing.B) { benchGemm(b, s.ta, s.tb, s.m, s.n, s.k) })
	}
}

// BenchmarkPeak is the micro-kernel alone on data in the L1 cache, one thread: what the blocked products are measured against.
func BenchmarkPeak(b *testing.B) {
	for _, k := range availableKernels()[1:] {
		b.Run(k.name, func(b *testing.B) {
			const depth = 256
			x, y, c := random(1, k.mr*depth), random(2, k.nr*depth), make([]float32, k.mr*k.nr)
			for b.Loop() {
				k.tile(depth, &x[0], depth, 1, &y[0], k.nr, 0, &c[0], k.nr, 1, false)
			}
			b.ReportMetric(2*float64(k.mr*k.nr*depth)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
		})
	}
}
