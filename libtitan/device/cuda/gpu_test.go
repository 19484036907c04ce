package cuda

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// engineOnce makes one engine for all tests: contexts and compiled kernels are dear.
var engineOnce = sync.OnceValues(func() (*Engine, error) {
	d, err := Open(0)
	if err != nil {
		return nil, err
	}
	leave, err := d.Enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	s, err := d.NewStream(false)
	if err != nil {
		return nil, err
	}
	return NewEngine(d, s, Options{})
})

// gpu gives the engine, current in the test's goroutine; without a GPU the test is skipped and says so.
func gpu(t testing.TB) *Engine {
	e, err := engineOnce()
	if err != nil {
		if code, ok := err.(interface{ ExitCode() int }); ok && code.ExitCode() == 5 {
			t.Skipf("SKIPPED: needs a GPU, make gpu runs it: %v", err)
		}
		require.NoError(t, err)
	}
	leave, err := e.Enter()
	require.NoError(t, err)
	t.Cleanup(leave)
	return e
}

// array is a value on the device with what it was filled with.
type array struct {
	t    testing.TB
	e    *Engine
	p    Ptr
	kind dtype.DType
	host []float64
}

// values are random, as kind holds them.
func values(kind dtype.DType, seed uint64, n int, scale float64) []float64 {
	r := rand.New(rand.NewPCG(seed, 7))
	x := make([]float64, n)
	for i := range x {
		f := float32(scale * r.NormFloat64())
		if kind == dtype.BFloat16 {
			f = dtype.F32(dtype.BF16(f))
		}
		x[i] = float64(f)
	}
	return x
}

func floats(x []float64) []float32 {
	out := make([]float32, len(x))
	for i, v := range x {
		out[i] = float32(v)
	}
	return out
}

func (e *Engine) take(t testing.TB, bytes int) Ptr {
	p, err := e.Alloc(bytes)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, e.Free(p)) })
	return p
}

// put places x on the device as kind.
func put(t testing.TB, e *Engine, kind dtype.DType, x []float64) array {
	a := array{t, e, e.take(t, len(x)*kind.Size()), kind, x}
	switch kind {
	case dtype.Float32:
		require.NoError(t, e.Upload(a.p, bytesOf(floats(x))))
	case dtype.BFloat16:
		narrow := make([]uint16, len(x))
		dtype.NarrowBF16(narrow, floats(x))
		require.NoError(t, e.Upload(a.p, bytesOf(narrow)))
	case dtype.Int32:
		ids := make([]int32, len(x))
		for i, v := range x {
			ids[i] = int32(v)
		}
		require.NoError(t, e.Upload(a.p, bytesOf(ids)))
	}
	return a
}

func random(t testing.TB, e *Engine, kind dtype.DType, seed uint64, n int) array {
	return put(t, e, kind, values(kind, seed, n, 1))
}

// blank is room for n elements, filled with NaN so that what is not written shows.
func blank(t testing.TB, e *Engine, kind dtype.DType, n int) array {
	a := array{t, e, e.take(t, n*kind.Size()), kind, make([]float64, n)}
	require.NoError(t, e.Stream.Set(a.p, 0xff, n*kind.Size()))
	return a
}

// get waits and reads a back.
func (a array) get() []float64 {
	require.NoError(a.t, a.e.Stream.Sync())
	out := make([]float64, len(a.host))
	if a.kind == dtype.BFloat16 {
		x := make([]uint16, len(out))
		require.NoError(a.t, a.e.Download(bytesOf(x), a.p))
		for i, v := range x {
			out[i] = float64(dtype.F32(v))
		}
		return out
	}
	x := make([]float32, len(out))
	require.NoError(a.t, a.e.Download(bytesOf(x), a.p))
	for i, v := range x {
		out[i] = float64(v)
	}
	return out
}

// does binds and runs once.
func does(t testing.TB) func(Work, error) {
	return func(w Work, err error) {
		t.Helper()
		require.NoError(t, err)
		require.NoError(t, w())
	}
}

// near requires |got-want| <= tolerance*(1+|want|) of every element; NaN is never near.
func near(t testing.TB, want []float64, got array, tolerance float64, what string) {
	t.Helper()
	worst, at := 0.0, -1
	for i, g := range got.get() {
		if g == want[i] {
			continue
		}
		if d := math.Abs(g-want[i]) / (1 + math.Abs(want[i])); !(d <= worst) {
			worst, at = d, i
		}
	}
	t.Logf("%s: %d elements, largest difference %.2g, allowed %.2g", what, len(want), worst, tolerance)
	if !(worst <= tolerance) {
		require.Failf(t, "too far", "%s: element %d: want %g got %g, off by %g, allowed %g", what, at, want[at], got.get()[at], worst, tolerance)
	}
}

// tolerance is that of one result of a kernel: bf16 rounds to 8 bits.
func tolerance(kind dtype.DType, float float64) float64 {
	if kind == dtype.BFloat16 {
		return 4e-3
	}
	return float
}

// reference computes ops in float64, by their definition.
type reference struct {
	t    testing.TB
	g    *graph.Graph
	feed map[*graph.Value]graph.Array
}

func newReference(t testing.TB) *reference {
	return &reference{t, &graph.Graph{Compute: dtype.Float32}, map[*graph.Value]graph.Array{}}
}

func (r *reference) input(a array, shape ...int) *graph.Value {
	v := r.g.Input("x", graph.Type{DType: a.kind, Shape: shape})
	r.feed[v] = graph.Array{Shape: shape, Data: a.host}
	return v
}

// backward is the gradients of the inputs of v's node from those of its results.
func (r *reference) backward(v *graph.Value, d ...*graph.Value) []*graph.Value {
	return v.Node.Op.VJP(r.g, v.Node, d)
}

func (r *reference) eval() map[*graph.Value]graph.Array {
	vals, err := op.Eval(r.g, r.feed)
	require.NoError(r.t, err)
	return vals
}
