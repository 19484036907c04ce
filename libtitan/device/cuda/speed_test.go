package cuda

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// The benchmarks measure on random data in turn over several sets of buffers, so that no cache holds them:
// go test -bench . -benchtime 40x. Bytes are those that must move: each input read once, each result written once.

// bench runs works in turn and reports what they move or compute a second.
func bench(b *testing.B, e *Engine, bytes, flops float64, works ...Work) {
	for _, w := range works {
		require.NoError(b, w())
	}
	begin, err := e.NewEvent(true)
	require.NoError(b, err)
	end, err := e.NewEvent(true)
	require.NoError(b, err)
	require.NoError(b, e.Stream.Sync())
	require.NoError(b, e.Stream.Record(begin))
	for i := range b.N {
		require.NoError(b, works[i%len(works)]())
	}
	require.NoError(b, e.Stream.Record(end))
	require.NoError(b, end.Sync())
	ms, err := end.Since(begin)
	require.NoError(b, err)
	each := float64(ms) / float64(b.N)
	b.ReportMetric(1000*each, "us")
	if bytes > 0 {
		b.ReportMetric(bytes/each/1e6, "GB/s")
	}
	if flops > 0 {
		b.ReportMetric(flops/each/1e9, "TFLOP/s")
	}
}

// noise is n random elements of bf16 or float32: a short random run, doubled until it is long enough.
func noise(b *testing.B, e *Engine, kind dtype.DType, n int) Ptr {
	p := e.take(b, n*kind.Size())
	have := min(n, 1<<16)
	seed := random(b, e, kind, uint64(n), have)
	require.NoError(b, e.Stream.Copy(p, seed.p, have*kind.Size()))
	for ; have < n; have *= 2 {
		require.NoError(b, e.Stream.Copy(p+Ptr(have*kind.Size()), p, min(have, n-have)*kind.Size()))
	}
	require.NoError(b, e.Stream.Sync())
	return p
}

// sets binds f to count sets of buffers.
func sets(b *testing.B, count int, f func() (Work, error)) (works []Work) {
	for range count {
		w, err := f()
		require.NoError(b, err)
		works = append(works, w)
	}
	return works
}

func BenchmarkMemory(b *testing.B) {
	const T, D, F, V = 8192, 4096, 14336, 128256
	bf, f32 := dtype.BFloat16, dtype.Float32
	e := gpu(b)
	run := func(name string, bytes float64, count int, f func(b *testing.B) func() (Work, error)) {
		b.Run(name, func(b *testing.B) {
			gpu(b)
			bench(b, e, bytes, 0, sets(b, count, f(b))...)
		})
	}
	run("copy", 2*(1<<30), 1, func(b *testing.B) func() (Work, error) {
		x, y := noise(b, e, f32, 1<<28), noise(b, e, f32, 1<<28)
		return func() (Work, error) { return func() error { return e.Stream.Copy(y, x, 1<<30) }, nil }
	})
	for _, d := range []int{256, 2048, D} {
		rows := T * D / d
		run(fmt.Sprintf("RMSNorm/%d", d), 4*T*D, 4, func(b *testing.B) func() (Work, error) {
			return func() (Work, error) {
				return e.RMSNorm(bf, noise(b, e, bf, T*D), noise(b, e, f32, rows), noise(b, e, bf, T*D), noise(b, e, bf, d), rows, d, 1e-5)
			}
		})
		run(fmt.Sprintf("RMSNormBackward/%d", d), 6*T*D, 4, func(b *testing.B) func() (Work, error) {
			return func() (Work, error) {
				return e.RMSNormBackward(bf, noise(b, e, bf, T*D), noise(b, e, f32, d), noise(b, e, bf, T*D), noise(b, e, bf, T*D), noise(b, e, bf, d), noise(b, e, f32, rows), rows, d, true)
			}
		})
	}
	run("SwiGLU", 6*T*F, 2, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.SwiGLU(bf, noise(b, e, bf, T*F), noise(b, e, bf, T*F), noise(b, e, bf, T*F), T*F)
		}
	})
	run("SwiGLUBackward", 10*T*F, 2, func(b *testing.B) func() (Work, error) {
		n := func() Ptr { return noise(b, e, bf, T*F) }
		return func() (Work, error) { return e.SwiGLUBackward(bf, n(), n(), n(), n(), n(), T*F) }
	})
	run("Rope", 4*T*D, 4, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.Rope(bf, Columns{P: noise(b, e, bf, T*D)}, noise(b, e, bf, T*D), noise(b, e, f32, T*64), noise(b, e, f32, T*64), 1, T, 32, 128, false)
		}
	})
	for _, heads := range []int{32, 8} {
		n := T * heads * 128
		run(fmt.Sprintf("RopeLargest/%d", heads), float64(4*n), 4, func(b *testing.B) func() (Work, error) {
			return func() (Work, error) {
				return e.RopeLargest(bf, Columns{P: noise(b, e, bf, n)}, noise(b, e, f32, 1), noise(b, e, bf, n), noise(b, e, f32, T*64), noise(b, e, f32, T*64), 1, T, heads, 128, true)
			}
		})
	}
	run("Add", 6*T*D, 4, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.Add(bf, noise(b, e, bf, T*D), T*D, noise(b, e, bf, T*D), noise(b, e, bf, T*D))
		}
	})
	run("Cast", 6*D*F, 4, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) { return e.Cast(bf, noise(b, e, bf, D*F), f32, noise(b, e, f32, D*F), D*F) }
	})
	ids := func(b *testing.B) Ptr {
		x := make([]float64, T)
		for i := range x {
			x[i] = float64(i * i % 5003 * 13)
		}
		return put(b, e, dtype.Int32, x).p
	}
	run("Embedding", 4*T*D, 4, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.Embedding(bf, noise(b, e, bf, T*D), bf, noise(b, e, bf, V*D), ids(b), T, Vocab{0, V}, D)
		}
	})
	run("EmbeddingBackward", 2*T*D, 2, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.EmbeddingBackward(bf, noise(b, e, f32, V*D), noise(b, e, bf, T*D), ids(b), T, Vocab{0, V}, D, true)
		}
	})
	run("EmbeddingBackwardRows", 2*T*D, 2, func(b *testing.B) func() (Work, error) {
		return func() (Work, error) {
			return e.EmbeddingBackwardRows(bf, noise(b, e, f32, T*D), noise(b, e, f32, V), noise(b, e, bf, T*D), ids(b), T, Vocab{0, V}, D)
		}
	})
	loss := func(b *testing.B) (logits, lse, at, one, grad Ptr) {
		return noise(b, e, bf, T*V), noise(b, e, f32, T), ids(b), noise(b, e, f32, 1), noise(b, e, bf, T*V)
	}
	run("CrossEntropy", 2*T*V, 1, func(b *testing.B) func() (Work, error) {
		logits, lse, at, one, _ := loss(b)
		return func() (Work, error) { return e.CrossEntropy(bf, one, lse, logits, at, T, V) }
	})
	run("CrossEntropyBackward", 4*T*V, 1, func(b *testing.B) func() (Work, error) {
		logits, lse, at, one, grad := loss(b)
		return func() (Work, error) { return e.CrossEntropyBackward(bf, grad, logits, at, lse, one, T, Vocab{0, V}) }
	})
	run("CrossEntropyBoth", 4*T*V, 1, func(b *testing.B) func() (Work, error) {
		logits, lse, at, one, grad := loss(b)
		return func() (Work, error) { return e.CrossEntropyBoth(bf, grad, one, lse, logits, at, one, T, V) }
	})
}

// BenchmarkLoss compares a block a row with a cluster of blocks a row, whose rows stay in the cache until they are read again.
func BenchmarkLoss(b *testing.B) {
	e := gpu(b)
	bf, f32 := dtype.BFloat16, dtype.Float32
	const vocab = 128256
	for _, rows := range []int{8192, 16384} {
		run := func(name string, f func(logits, lse, losses, scale, labels Ptr) (Work, error)) {
			b.Run(fmt.Sprintf("%d/%s", rows, name), func(b *testing.B) {
				gpu(b)
				labels := put(b, e, dtype.Int32, make([]float64, rows))
				w, err := f(noise(b, e, bf, rows*vocab), noise(b, e, f32, rows), noise(b, e, f32, rows), noise(b, e, f32, 1), labels.p)
				require.NoError(b, err)
				bench(b, e, 4*float64(rows*vocab), 0, w)
			})
		}
		run("blocks", func(logits, lse, losses, scale, labels Ptr) (Work, error) {
			return e.bind(flatKernel("cross_entropy_both", bf, 8), lossGrid(bf, rows, vocab), pack(logits, labels, lse, losses, scale, logits, vocab))
		})
		run("clusters", func(logits, lse, _, scale, labels Ptr) (Work, error) {
			return e.CrossEntropyBoth(bf, logits, scale, lse, logits, labels, scale, rows, vocab)
		})
	}
}

func BenchmarkOptimizer(b *testing.B) {
	for _, grads := range []dtype.DType{dtype.Float32, dtype.BFloat16} {
		b.Run(grads.String(), func(b *testing.B) { benchOptimizer(b, grads) })
	}
}

// benchOptimizer measures updates by gradients of a type.
func benchOptimizer(b *testing.B, grads dtype.DType) {
	e := gpu(b)
	var params []Param
	all, size := 0.0, float64(grads.Size())
	for _, n := range []int{128256 * 2048, 2048 * 2048, 2048 * 8192, 2048, 400_000_000, 128256 * 2048, 17} {
		f := func() Ptr { return noise(b, e, dtype.Float32, n) }
		params = append(params, Param{P: f(), G: noise(b, e, grads, n), M: f(), V: f(), Copy: noise(b, e, dtype.BFloat16, n), N: n, NarrowG: grads == dtype.BFloat16})
		all += float64(n)
	}
	for _, what := range []string{"", " and largest magnitudes"} {
		o, err := e.NewOptimizer(params, Tally{Where: []int{0, 1, 2, 3, 4, 5, 6}, NumParams: 7})
		require.NoError(b, err)
		o.Set(AdamW{LR: 1e-5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, C1: 1, C2: 1, MaxNorm: 1})
		require.NoError(b, sequence(o.Measure, o.Clip)())
		b.Run("AdamW"+what, func(b *testing.B) { gpu(b); bench(b, e, (26+size)*all, 0, o.Update) })
		b.Run("Squares", func(b *testing.B) { gpu(b); bench(b, e, size*all, 0, o.squares[Gradients]) })
		b.Run("Measure", func(b *testing.B) { gpu(b); bench(b, e, size*all, 0, o.Measure) })
		b.Run("Clip", func(b *testing.B) { gpu(b); bench(b, e, 0, 0, o.Clip) })
		require.NoError(b, o.Close())
		for i := range params {
			params[i].Largest = e.take(b, 4)
		}
	}
}

func BenchmarkProduct(b *testing.B) {
	const T, H, F = 8192, 4096, 14336
	e := gpu(b)
	bf, f32 := dtype.BFloat16, dtype.Float32
	for _, c := range []struct {
		name string
		p    Product
	}{
		{"forward", Product{M: T, N: F, K: H, TransB: true, In: bf, Out: bf}},
		{"dx", Product{M: T, N: H, K: F, In: bf, Out: bf}},
		{"dw", Product{M: F, N: H, K: T, TransA: true, In: bf, Out: f32, Add: true}},
		{"float32", Product{M: T, N: H, K: H, TransB: true, In: f32, Out: f32}},
	} {
		b.Run(c.name, func(b *testing.B) {
			gpu(b)
			p := c.p
			works := sets(b, 2, func() (Work, error) {
				return e.Product(p, noise(b, e, p.Out, p.M*p.N), noise(b, e, p.In, p.M*p.K), noise(b, e, p.In, p.K*p.N))
			})
			bench(b, e, 0, 2*float64(p.M)*float64(p.N)*float64(p.K), works...)
		})
	}
}

// BenchmarkJoinedProducts compares the backward's products for queries, keys and values, one after the other, with joined ones.
func BenchmarkJoinedProducts(b *testing.B) {
	e, bf := gpu(b), dtype.BFloat16
	for _, c := range []struct {
		name   string
		t, k   int
		widths []int
	}{
		{"1B", 16384, 2048, []int{512, 512, 2048}}, {"8B", 8192, 4096, []int{1024, 1024, 4096}},
	} {
		all := 0
		for _, n := range c.widths {
			all += n
		}
		run := func(name string, widths []int, product func(n int, first bool) Product) {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				gpu(b)
				out := noise(b, e, bf, max(c.t*c.k, all*c.k))
				var works []Work
				for i, n := range widths {
					w, err := e.Product(product(n, i == 0), out, noise(b, e, bf, c.t*n), noise(b, e, bf, max(n, c.t)*c.k))
					require.NoError(b, err)
					works = append(works, w)
				}
				bench(b, e, 0, 2*float64(c.t)*float64(c.k)*float64(all), sequence(works...))
			})
		}
		dx := func(n int, first bool) Product { return Product{M: c.t, N: c.k, K: n, In: bf, Out: bf, Add: !first} }
		dw := func(n int, _ bool) Product { return Product{M: n, N: c.k, K: c.t, TransA: true, In: bf, Out: bf} }
		run("dx", c.widths, dx)
		run("dx joined", []int{all}, dx)
		run("dw", c.widths, dw)
		run("dw joined", []int{all}, dw)
	}
}

func BenchmarkAttention(b *testing.B) {
	e := gpu(b)
	for _, c := range []struct {
		kind  dtype.DType
		shape AttnShape
	}{
		{dtype.BFloat16, attnShape(1, 8192, 8192, 32, 8, 128, 0, 0)},
		{dtype.BFloat16, attnShape(2, 8192, 8192, 32, 8, 64, 0, 0)},
		{dtype.BFloat16, attnShape(8, 2048, 2048, 16, 16, 16, 0, 0)},
		{dtype.Float32, attnShape(1, 2048, 2048, 32, 8, 128, 0, 0)},
		{dtype.Float32, attnShape(8, 2048, 2048, 16, 16, 16, 0, 0)},
	} {
		s := c.shape
		n := func(b *testing.B, heads int) Ptr { return noise(b, e, c.kind, s.Batch*s.SeqQ*heads*s.HeadDim) }
		flops := 2 * float64(s.Batch*s.SeqQ*s.SeqQ) * float64(s.Heads*s.HeadDim)
		name := fmt.Sprintf("%v/b%ds%dh%d-%dd%d", c.kind, s.Batch, s.SeqQ, s.Heads, s.KVHeads, s.HeadDim)
		bound := func(b *testing.B) (forward, backward Work) {
			q, k, v, o, lse := n(b, s.Heads), n(b, s.KVHeads), n(b, s.KVHeads), n(b, s.Heads), noise(b, e, dtype.Float32, s.Batch*s.Heads*s.SeqQ)
			forward, err := e.Attention(c.kind, o, lse, q, k, v, s)
			require.NoError(b, err)
			backward, err = e.AttentionBackward(c.kind, n(b, s.Heads), n(b, s.KVHeads), Columns{P: n(b, s.KVHeads)}, n(b, s.Heads), q, k, v, o, lse, s)
			require.NoError(b, err)
			require.NoError(b, forward())
			return forward, backward
		}
		b.Run(name+"/forward", func(b *testing.B) { gpu(b); f, _ := bound(b); bench(b, e, 0, flops, f) })
		b.Run(name+"/backward", func(b *testing.B) { gpu(b); _, w := bound(b); bench(b, e, 0, 2.5*flops, w) })
	}
}

// What is moved by a cast: what it reads once, a byte a number for each copy.
func BenchmarkFloat8(b *testing.B) {
	const T = 8192
	e := gpu(b)
	e4, e5 := dtype.Float8E4M3FN, dtype.Float8E5M2
	for _, c := range []struct {
		name     string
		kind, to dtype.DType
		width    int
		per      Scaling
	}{
		{"activation", dtype.BFloat16, e4, 4096, PerTensor}, {"hidden", dtype.BFloat16, e4, 14336, PerTensor}, {"gradient", dtype.BFloat16, e5, 14336, PerTensor},
		{"kv", dtype.BFloat16, e5, 1024, PerTensor}, {"weight", dtype.Float32, e4, 4096, PerTensor}, {"rows", dtype.BFloat16, e4, 4096, PerRow}, {"columns", dtype.BFloat16, e4, 4096, PerColumn},
	} {
		n := T * c.width
		read := float64(n * c.kind.Size())
		run := func(name string, bytes float64, f func(x, amax, q, turned, inverse Ptr) (Work, error)) {
			b.Run(c.name+"/"+name, func(b *testing.B) {
				gpu(b)
				bench(b, e, bytes, 0, sets(b, 3, func() (Work, error) {
					scales := noise(b, e, dtype.Float32, 2*max(T, c.width))
					return f(noise(b, e, c.kind, n), scales, e.take(b, n), e.take(b, n), scales+Ptr(4*max(T, c.width)))
				})...)
			})
		}
		run("amax", read, func(x, amax, _, _, _ Ptr) (Work, error) { return e.Amax(c.kind, amax, x, T, c.width, c.per) })
		run("straight", read+float64(n), func(x, amax, q, _, inverse Ptr) (Work, error) {
			return e.Float8Cast(Float8{c.to, q, 0, inverse, c.per}, c.kind, x, amax, T, c.width, false)
		})
		run("turned", read+float64(n), func(x, amax, _, turned, inverse Ptr) (Work, error) {
			return e.Float8Cast(Float8{c.to, 0, turned, inverse, c.per}, c.kind, x, amax, T, c.width, false)
		})
		run("both", read+2*float64(n), func(x, amax, q, turned, inverse Ptr) (Work, error) {
			return e.Float8Cast(Float8{c.to, q, turned, inverse, c.per}, c.kind, x, amax, T, c.width, false)
		})
	}
	b.Run("turn", func(b *testing.B) {
		gpu(b)
		bench(b, e, 2*14336*4096, 0, sets(b, 4, func() (Work, error) { return e.Float8Turn(e.take(b, 14336*4096), e.take(b, 14336*4096), 14336, 4096) })...)
	})
}

// The three products of float8 linears of 8192 tokens, with one scale a tensor and one a row.
func BenchmarkFloat8Product(b *testing.B) {
	const T, H, F, KV = 8192, 4096, 14336, 1024
	e := gpu(b)
	e4, e5 := dtype.Float8E4M3FN, dtype.Float8E5M2
	for _, size := range []struct {
		name    string
		in, out int
	}{{"wq", H, H}, {"wk", H, KV}, {"w1", H, F}, {"w2", F, H}} {
		for _, rows := range []bool{false, true} {
			gradient := e5
			if rows {
				gradient = e4
			}
			for _, c := range []struct {
				name string
				p    Float8Product
			}{
				{"forward", Float8Product{M: T, N: size.out, K: size.in, A: e4, Out: dtype.BFloat16, Fast: true}},
				{"dx", Float8Product{M: T, N: size.in, K: size.out, A: gradient, Out: dtype.BFloat16}},
				{"dw", Float8Product{M: size.out, N: size.in, K: T, A: gradient, Out: dtype.Float32}},
				{"dw added", Float8Product{M: size.out, N: size.in, K: T, A: gradient, Out: dtype.Float32, Add: true}},
			} {
				p := c.p
				p.B, p.RowsA, p.RowsB = e4, rows, rows
				b.Run(fmt.Sprintf("%s/rows %v/%s", size.name, rows, c.name), func(b *testing.B) {
					gpu(b)
					one := noise(b, e, dtype.Float32, max(p.M, p.N))
					works := sets(b, 2, func() (Work, error) {
						return e.Float8Product(p, noise(b, e, p.Out, p.M*p.N), float8Noise(b, e, p.A, p.M*p.K), one, float8Noise(b, e, p.B, p.N*p.K), one)
					})
					bench(b, e, 0, 2*float64(p.M)*float64(p.N)*float64(p.K), works...)
				})
			}
		}
	}
}

// float8Noise is n random numbers.
func float8Noise(b *testing.B, e *Engine, kind dtype.DType, n int) Ptr {
	x, q := noise(b, e, dtype.BFloat16, n), e.take(b, n)
	one := noise(b, e, dtype.Float32, 2)
	does(b)(e.Amax(dtype.BFloat16, one, x, n/16, 16, PerTensor))
	does(b)(e.Float8Cast(Float8{kind, q, 0, one + 4, PerTensor}, dtype.BFloat16, x, one, n/16, 16, false))
	return q
}
