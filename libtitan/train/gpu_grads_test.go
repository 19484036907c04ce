package train

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/op"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// The gradients that products round to bfloat16 are those that are float32 else, to half a unit of its last bit; the others stay
// float32. Sums are made in other orders.
func TestGPUNarrowGradients(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, c := range []string{"bfloat16", "tensorwise", "rowwise_with_gw_hp"} {
		t.Run(c, func(t *testing.T) {
			m := computingIn(t, c, data)
			wide := gradients(t, m, (*plan.Program).KeepCopies, (*plan.Program).SumInProducts, (*plan.Program).PlaceGrads)
			narrow := gradients(t, m, (*plan.Program).KeepCopies, (*plan.Program).SumInProducts, (*plan.Program).NarrowGrads, (*plan.Program).PlaceGrads)
			require.Len(t, narrow, len(wide))
			for fqn, want := range wide {
				kind, rounding := dtype.BFloat16, 1.0/256
				if strings.Contains(fqn, "norm") || strings.Contains(fqn, "tok_embeddings") {
					kind, rounding = dtype.Float32, 0
				}
				require.Equal(t, []dtype.DType{dtype.Float32, kind}, []dtype.DType{want.kind, narrow[fqn].kind}, fqn)
				largest, off := 0.0, 0.0
				for i, x := range want.x {
					largest = max(largest, math.Abs(float64(x)))
					off = max(off, math.Abs(float64(narrow[fqn].x[i]-x))-rounding*math.Abs(float64(x)))
				}
				t.Logf("%s: up to %.2g, off by %.2g more than is rounded", fqn, largest, off)
				require.Positive(t, largest, fqn)
				require.LessOrEqual(t, off, 1e-5*largest, fqn)
			}
		})
	}
}

// Gradients that joined products make are those of products one by one, but for the rounding of what they add up to: relative to all of a
// gradient, less than bfloat16's.
func TestGPUJoinedProducts(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, compile := range []bool{false, true} {
		t.Run(fmt.Sprint("compiled ", compile), func(t *testing.T) {
			m := computingIn(t, "bfloat16", data)
			m.Compile = &manifest.Compile{Enable: compile, Components: []string{"model", "loss"}}
			m.Derive()
			apart := gradients(t, m, (*plan.Program).KeepCopies, (*plan.Program).SumInProducts, (*plan.Program).NarrowGrads, (*plan.Program).PlaceGrads)
			joined := gradients(t, m)
			require.Len(t, joined, len(apart))
			for fqn, want := range apart {
				require.Equal(t, want.kind, joined[fqn].kind, fqn)
				off, all := 0.0, 0.0
				for i, x := range want.x {
					off, all = off+math.Pow(float64(joined[fqn].x[i]-x), 2), all+math.Pow(float64(x), 2)
				}
				t.Logf("%s: off by %.2g of its norm", fqn, math.Sqrt(off/all))
				require.Positive(t, all, fqn)
				require.LessOrEqual(t, math.Sqrt(off/all), 1.0/128, fqn)
			}
		})
	}
}

// An embedding's gradient that has the rows of a step's tokens alone has the bits of one that has all, and so has what is learned.
func TestGPUGradientsByRows(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	narrow, rows, place := (*plan.Program).NarrowGrads, (*plan.Program).GradsByRows, (*plan.Program).PlaceGrads
	for _, compute := range []string{"float32", "bfloat16", "tensorwise"} {
		t.Run(compute, func(t *testing.T) {
			m := computingIn(t, compute, data)
			m.Training.SeqLen = 16 // 128 tokens, and 259 rows
			m.Derive()
			all, some := gradients(t, m, narrow, place), gradients(t, m, narrow, rows, place)
			require.False(t, all[embedding].byRows)
			require.True(t, some[embedding].byRows)
			require.Equal(t, all[embedding].x, some[embedding].x)
			require.True(t, slices.ContainsFunc(all[embedding].x, func(x float32) bool { return x != 0 }))
			want, got := norms(t, m, narrow, place), norms(t, m, narrow, rows, place)
			require.Len(t, want, 10)
			require.InEpsilonSlice(t, want, got, 1e-9)
		})
	}
}

// A step whose kernels tell the largest magnitudes of what they make has the bits of one that finds them later.
func TestGPULargestWhereMade(t *testing.T) {
	needGPU(t)
	m := computingIn(t, "tensorwise", numbers(t))
	copies, told, place := (*plan.Program).KeepCopies, (*plan.Program).LargestWhereMade, (*plan.Program).PlaceGrads
	require.Equal(t, gradients(t, m, copies, place), gradients(t, m, copies, told, place))
}

const embedding = "tok_embeddings.weight"

// norms are the losses and norms of m's first five steps.
func norms(t *testing.T, m *manifest.Manifest, ways ...func(p *plan.Program)) (out []float64) {
	onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
		k.report.seen = func(s record) { out = append(out, s.Loss, s.GradNorm) }
		for range 5 {
			_, err := k.step(ctx, ctx)
			require.NoError(t, err)
		}
	}, ways...)
	return out
}

// gradient is one as it lies on the device, and its values, those of rows that are not there too.
type gradient struct {
	kind   dtype.DType
	byRows bool
	x      []float32
}

// gradients of m's first step.
func gradients(t *testing.T, m *manifest.Manifest, ways ...func(p *plan.Program)) (out map[string]gradient) {
	onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
		_, err := k.step(ctx, ctx)
		require.NoError(t, err)
		out = gradientsOf(t, g)
	}, ways...)
	return out
}

// gradientsOf downloads the gradients of the step before.
func gradientsOf(t *testing.T, g *gpu) map[string]gradient {
	require.NoError(t, g.e.Stream.Sync())
	out := map[string]gradient{}
	for _, h := range g.held {
		at := g.programs[0].Grads[h.Param.FQN]
		bytes := make([]byte, at.Bytes)
		require.NoError(t, g.e.Download(bytes, at.P))
		x := make([]float32, len(bytes)/at.DType.Size())
		for i := range x {
			if at.DType == dtype.BFloat16 {
				x[i] = dtype.F32(binary.LittleEndian.Uint16(bytes[2*i:]))
			} else {
				x[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
			}
		}
		if at.Rows != 0 {
			x = allRows(t, g, h, at.Rows, x)
		}
		require.Len(t, x, int(h.NumElements()))
		out[h.Param.FQN] = gradient{at.DType, at.Rows != 0, x}
	}
	return out
}

// allRows is the gradient of h, of which x are the rows that are there.
func allRows(t *testing.T, g *gpu, h parallel.Held, rows cuda.Ptr, x []float32) []float32 {
	at, all := make([]byte, 4*h.Sizes[0]), make([]float32, h.NumElements())
	require.NoError(t, g.e.Download(at, rows))
	dim := len(all) / int(h.Sizes[0])
	for row := range int(h.Sizes[0]) {
		if i := int32(binary.LittleEndian.Uint32(at[4*row:])); i >= 0 {
			copy(all[row*dim:][:dim], x[int(i)*dim:])
		}
	}
	return all
}

// A norm that is begun before the end of a program has the bits of one that is made there, in kernels and in a graph.
func TestGPUNormBegunEarly(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, compute := range []string{"float32", "bfloat16"} {
		t.Run(compute, func(t *testing.T) {
			m := computingIn(t, compute, data)
			want := norms(t, m)
			require.Len(t, want, 10)
			require.Equal(t, want, norms(t, m, (*plan.Program).Rearrange, (*plan.Program).PlaceGrads, func(p *plan.Program) { lastIsReduced(t, p) }))
		})
	}
}

// lastIsReduced has p's embedding get its gradient by a move beside the work, as from a reduction, which is waited for at the end.
func lastIsReduced(t *testing.T, p *plan.Program) {
	st := p.Stages[0]
	at := slices.IndexFunc(st.Params, func(v *graph.Value) bool { return v.Name() == embedding })
	moved := op.Mask.Apply(st.Graph, op.MoveAttr{}, st.Grads[at])
	at = slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Out[0].Name == embedding && s.Out[0].Class == plan.Grad })
	grad := p.Steps[at].Out
	made := *grad[0]
	made.Class, made.Name, made.Offset = plan.Arena, "", p.ArenaBytes
	p.ArenaBytes += made.Bytes()
	p.Steps[at].Out = []*plan.Slot{&made}
	p.Steps = append(p.Steps,
		plan.Step{Node: moved.Node, In: []*plan.Slot{&made}, Out: grad, Add: []bool{false}, Aside: true},
		plan.Step{Kind: plan.Accumulate, In: grad, Out: grad, Add: []bool{false}})
	first, whole := p.Tail()
	require.Equal(t, len(p.Steps)-1, first)
	require.Len(t, whole, len(st.Params)-1)
}
