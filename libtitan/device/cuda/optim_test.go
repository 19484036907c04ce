package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// adamW is the update in float64 of one parameter and its state.
type adamW struct{ p, m, v []float64 }

func (a adamW) update(g []float64, s AdamW, scale float64) {
	for j, x := range g {
		x *= scale
		a.p[j] *= 1 - s.LR*s.WeightDecay
		a.m[j] = s.Beta1*a.m[j] + (1-s.Beta1)*x
		a.v[j] = s.Beta2*a.v[j] + (1-s.Beta2)*x*x
		a.p[j] -= s.LR / s.C1 * a.m[j] / (math.Sqrt(a.v[j])/math.Sqrt(s.C2) + s.Eps)
	}
}

func sumSquares(x []float64) (sum float64) {
	for _, v := range x {
		sum += v * v
	}
	return sum
}

// Twenty updates of tensors of several sizes against float64, clipped or not, the later ones recorded; the host has the tally of
// the very step that it waits for, and the largest magnitudes are those that Amax finds. A step that is not finite changes nothing.
// Gradients are float32, or bfloat16 in the one or the other half of the tensors; the squares of some are begun early.
func TestOptimizer(t *testing.T) {
	wide, narrow := dtype.Float32, dtype.BFloat16
	for _, kinds := range [][2]dtype.DType{{wide, wide}, {wide, narrow}, {narrow, wide}} {
		t.Run(fmt.Sprint(kinds), func(t *testing.T) { optimizes(t, kinds) })
	}
}

// optimizes checks updates by gradients that are of these types in turn.
func optimizes(t *testing.T, kinds [2]dtype.DType) {
	e := gpu(t)
	sizes := []int{1, 3, 2048, 2049, 70_001, 40_000}
	where := []int{6, 2, -1, 0, 5, 3} // of seven; others count the third
	var params []Param
	var want []adamW
	var arrays, copies, largest []array
	for i, n := range sizes {
		zero := make([]float64, n)
		a, c := random(t, e, dtype.Float32, uint64(i), n), blank(t, e, dtype.BFloat16, n)
		p := Param{P: a.p, G: blank(t, e, kinds[i%2], n).p, M: put(t, e, dtype.Float32, zero).p, V: put(t, e, dtype.Float32, zero).p, N: n, NarrowG: kinds[i%2] == dtype.BFloat16, Early: i%3 != 0}
		if i != 1 {
			p.Copy = c.p
		}
		l := put(t, e, dtype.Float32, []float64{1e9}) // of the step before
		if i != 2 {
			p.Largest = l.p
		}
		params, arrays, copies, largest = append(params, p), append(arrays, a), append(copies, c), append(largest, l)
		want = append(want, adamW{a.host, make([]float64, n), make([]float64, n)})
	}
	losses := put(t, e, dtype.Float32, []float64{2, 0.5, 3})
	o, err := e.NewOptimizer(params, Tally{Where: where, NumParams: 7, Losses: losses.p, NumLosses: 3})
	require.NoError(t, err)
	defer func() { require.NoError(t, o.Close()) }()
	slow := e.take(t, 1<<30)
	whole := sequence(func() error { return e.Stream.Zero(slow, 1<<30) }, o.Begin, o.Measure, o.Clip, o.Update)
	graph, err := e.Stream.Capture(whole)
	require.NoError(t, err)
	defer graph.Close()
	s := AdamW{LR: 8e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1}
	step := func(number int, f func(n, i int) []float64) (tally []float64) {
		s.C1, s.C2 = 1-math.Pow(s.Beta1, float64(number)), 1-math.Pow(s.Beta2, float64(number))
		s.MaxNorm = []float64{1, 1e9}[number%2]
		for i, n := range sizes {
			g := bytesOf(floats(f(n, i)))
			if params[i].NarrowG {
				narrow := make([]uint16, n)
				dtype.NarrowBF16(narrow, floats(f(n, i)))
				g = bytesOf(narrow)
			}
			require.NoError(t, e.Upload(params[i].G, g))
		}
		o.Set(s)
		if number > 10 {
			require.NoError(t, e.Stream.Launch(graph))
		} else {
			require.NoError(t, whole())
		}
		require.NoError(t, o.Clipped.Sync())
		return o.Tally()
	}
	for number := 1; number <= 20; number++ {
		grad := func(n, i int) []float64 { return values(kinds[i%2], uint64(100*number+i), n, 1) }
		got := step(number, grad)
		tally := make([]float64, 8)
		tally[7] = 5.5
		for i, n := range sizes {
			if where[i] >= 0 {
				tally[where[i]] = sumSquares(grad(n, i))
			}
		}
		require.InEpsilonSlice(t, nonzero(tally), nonzero(got), 1e-12, "step %d", number)
		atOnce, err := o.Squares(Gradients)
		require.NoError(t, err)
		for i, at := range where {
			require.True(t, at < 0 || got[at] == atOnce[i], "the bits of %d's squares, begun early or not", i)
		}
		var sum float64
		for _, x := range tally[:7] {
			sum += x
		}
		for i, n := range sizes {
			want[i].update(grad(n, i), s, min(1, s.MaxNorm/(math.Sqrt(sum)+1e-6)))
			if params[i].Largest != 0 {
				require.Equal(t, largestOf(arrays[i].get()), largest[i].get(), "largest of %d in step %d", i, number)
			}
		}
	}
	for i := range sizes {
		near(t, want[i].p, arrays[i], 2e-6, fmt.Sprintf("parameter %d", i))
	}
	before := map[Ptr][]float64{}
	for i, a := range arrays {
		x := a.get()
		before[a.p] = x
		if params[i].Copy != 0 {
			require.Equal(t, rounded(x), copies[i].get(), "copy of %d", i)
		}
		found := blank(t, e, dtype.Float32, 1)
		does(t)(e.Amax(dtype.Float32, found.p, a.p, 1, sizes[i], PerTensor))
		before[largest[i].p] = largest[i].get()
		if params[i].Largest != 0 {
			require.Equal(t, found.get(), before[largest[i].p], "largest of %d", i)
		}
		squares, err := o.Squares(Values)
		require.NoError(t, err)
		require.InEpsilon(t, sumSquares(x), squares[i], 1e-12)
	}
	for _, bad := range []float64{math.NaN(), math.Inf(1)} {
		tally := step(21, func(n, i int) []float64 {
			g := values(kinds[i%2], uint64(i), n, 1)
			if i == 4 {
				g[n-1] = bad
			}
			return g
		})
		require.NoError(t, e.Stream.Sync())
		require.False(t, tally[5]-tally[5] == 0)
		for _, a := range append(arrays, largest...) {
			require.Equal(t, before[a.p], a.get())
		}
	}
}

// A table whose gradient has some rows alone becomes, to the bit, what it does where the others are zeros, and what float64 makes of
// it. Rows are longer and shorter than chunks; those of the gradient that belong to no row of the table are NaN.
func TestOptimizerByRows(t *testing.T) {
	for _, c := range []struct{ rows, dim, tokens int }{{37, 1028, 20}, {300, 2048, 41}, {3, 70_000, 2}, {5000, 12, 701}, {8, 4, 8}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) { optimizesByRows(t, c.rows, c.dim, c.tokens) })
	}
}

func optimizesByRows(t *testing.T, rows, dim, tokens int) {
	e := gpu(t)
	n := rows * dim
	want := adamW{values(dtype.Float32, 1, n, 1), make([]float64, n), make([]float64, n)}
	table := func(p Param) (*Optimizer, []array) {
		all := []array{put(t, e, dtype.Float32, want.p), put(t, e, dtype.Float32, want.m), put(t, e, dtype.Float32, want.v), blank(t, e, dtype.BFloat16, n), blank(t, e, dtype.Float32, 1)}
		p.P, p.M, p.V, p.Copy, p.Largest, p.N = all[0].p, all[1].p, all[2].p, all[3].p, all[4].p, n
		o, err := e.NewOptimizer([]Param{p}, Tally{Where: []int{0}, NumParams: 1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, o.Close()) })
		return o, all
	}
	whole, some, at := blank(t, e, dtype.Float32, n), blank(t, e, dtype.Float32, tokens*dim), e.take(t, 4*rows)
	byAll, all := table(Param{G: whole.p})
	byRows, same := table(Param{G: some.p, Rows: at, Dim: dim, Early: true})
	s := AdamW{LR: 8e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, MaxNorm: 1}
	for number := 1; number <= 5; number++ {
		g, lie := make([]float64, n), values(dtype.Float32, uint64(number), tokens*dim, 1)
		where := slices.Repeat([]int32{-1}, rows)
		for token, row := range rand.New(rand.NewPCG(uint64(number), 4)).Perm(rows)[:tokens/2] {
			where[row] = int32(2 * token)
			copy(g[row*dim:][:dim], lie[2*token*dim:])
		}
		for i := range lie {
			if i/dim%2 == 1 || i/dim >= tokens/2*2 {
				lie[i] = math.NaN()
			}
		}
		require.NoError(t, e.Upload(whole.p, bytesOf(floats(g))))
		require.NoError(t, e.Upload(some.p, bytesOf(floats(lie))))
		require.NoError(t, e.Upload(at, bytesOf(where)))
		s.C1, s.C2 = 1-math.Pow(s.Beta1, float64(number)), 1-math.Pow(s.Beta2, float64(number))
		for _, o := range []*Optimizer{byAll, byRows} {
			o.Set(s)
			require.NoError(t, sequence(o.Begin, o.Measure, o.Clip, o.Update)())
			require.NoError(t, o.Clipped.Sync())
			require.InEpsilon(t, sumSquares(g), o.Tally()[0], 1e-12)
		}
		want.update(g, s, min(1, s.MaxNorm/(math.Sqrt(sumSquares(g))+1e-6)))
		for i, x := range all {
			require.Equal(t, x.get(), same[i].get(), "step %d", number)
		}
	}
	near(t, want.p, same[0], 2e-6, "the table")
}

// A parameter that becomes infinite or NaN has the largest magnitude that Amax finds then, as its tail has.
func TestOptimizerOfWhatIsNotFinite(t *testing.T) {
	e := gpu(t)
	for _, bad := range []float64{math.Inf(-1), math.NaN()} {
		for _, at := range []int{5, 4098} {
			const n = 4099
			x := values(dtype.Float32, 1, n, 1)
			x[at] = bad
			zeros := func() Ptr { return put(t, e, dtype.Float32, make([]float64, n)).p }
			p, largest, found := put(t, e, dtype.Float32, x), blank(t, e, dtype.Float32, 1), blank(t, e, dtype.Float32, 1)
			o, err := e.NewOptimizer([]Param{{P: p.p, G: zeros(), M: zeros(), V: zeros(), Largest: largest.p, N: n}}, Tally{Where: []int{0}, NumParams: 1})
			require.NoError(t, err)
			o.Set(AdamW{LR: 1e-3, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, C1: 1, C2: 1, MaxNorm: 1})
			require.NoError(t, sequence(o.Measure, o.Clip, o.Update)())
			does(t)(e.Amax(dtype.Float32, found.p, p.p, 1, n, PerTensor))
			require.Equal(t, bitsAt(t, e, found.p), bitsAt(t, e, largest.p))
			require.Equal(t, math.IsNaN(bad), math.IsNaN(largest.get()[0]))
			require.NoError(t, o.Close())
		}
	}
}

// bitsAt are a float32's on the device.
func bitsAt(t *testing.T, e *Engine, p Ptr) (bits [4]byte) {
	require.NoError(t, e.Stream.Sync())
	require.NoError(t, e.Download(bits[:], p))
	return bits
}

// largestOf is the largest of x's magnitudes.
func largestOf(x []float64) (largest []float64) {
	largest = []float64{0}
	for _, v := range x {
		largest[0] = max(largest[0], math.Abs(v))
	}
	return largest
}

func nonzero(x []float64) (out []float64) {
	for _, v := range x {
		if v != 0 {
			out = append(out, v)
		}
	}
	return out
}

// rounded is x as bfloat16 holds it.
func rounded(x []float64) []float64 {
	out := make([]float64, len(x))
	for i, v := range x {
		out[i] = float64(dtype.F32(dtype.BF16(float32(v))))
	}
	return out
}
