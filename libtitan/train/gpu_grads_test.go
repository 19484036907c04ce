package train

import (
	"context"
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/op"
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
			narrow := gradients(t, m)
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

// gradient is one as it lies on the device, and its values.
type gradient struct {
	kind dtype.DType
	x    []float32
}

// gradients of m's first step.
func gradients(t *testing.T, m *manifest.Manifest, ways ...func(p *plan.Program)) map[string]gradient {
	out := map[string]gradient{}
	onRank(t, m, func(ctx context.Context, k *rank, g *gpu) {
		_, err := k.step(ctx, ctx)
		require.NoError(t, err)
		require.NoError(t, g.e.Stream.Sync())
		for _, h := range g.held {
			at, x := g.programs[0].Grads[h.Param.FQN], make([]float32, h.NumElements())
			bytes := make([]byte, len(x)*at.DType.Size())
			require.NoError(t, g.e.Download(bytes, at.P))
			for i := range x {
				if at.DType == dtype.BFloat16 {
					x[i] = dtype.F32(binary.LittleEndian.Uint16(bytes[2*i:]))
				} else {
					x[i] = math.Float32frombits(binary.LittleEndian.Uint32(bytes[4*i:]))
				}
			}
			out[h.Param.FQN] = gradient{at.DType, x}
		}
	}, ways...)
	return out
}

// A norm that is begun before the end of a program has the bits of one that is made there, in kernels and in a graph.
func TestGPUNormBegunEarly(t *testing.T) {
	needGPU(t)
	data := numbers(t)
	for _, compute := range []string{"float32", "bfloat16"} {
		t.Run(compute, func(t *testing.T) {
			norms := func(ways ...func(p *plan.Program)) (out []float64) {
				onRank(t, computingIn(t, compute, data), func(ctx context.Context, k *rank, g *gpu) {
					k.report.seen = func(s record) { out = append(out, s.Loss, s.GradNorm) }
					for range 5 {
						_, err := k.step(ctx, ctx)
						require.NoError(t, err)
					}
				}, ways...)
				return out
			}
			want := norms()
			require.Len(t, want, 10)
			require.Equal(t, want, norms((*plan.Program).Rearrange, (*plan.Program).PlaceGrads, func(p *plan.Program) { lastIsReduced(t, p) }))
		})
	}
}

// lastIsReduced has p's embedding get its gradient by a move beside the work, as from a reduction, which is waited for at the end.
func lastIsReduced(t *testing.T, p *plan.Program) {
	st := p.Stages[0]
	at := slices.IndexFunc(st.Params, func(v *graph.Value) bool { return v.Name() == "tok_embeddings.weight" })
	moved := op.Mask.Apply(st.Graph, op.MoveAttr{}, st.Grads[at])
	at = slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Out[0].Name == "tok_embeddings.weight" && s.Out[0].Class == plan.Grad })
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
