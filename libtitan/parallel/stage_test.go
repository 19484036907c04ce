package parallel

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

var tiny = manifest.ModelConfig{
	Dim: 12, NumLayers: 4, NumHeads: 3, NumKVHeads: 1, HeadDim: 4, FFNHidden: 10, VocabSize: 11, MaxSeqLen: 6, NormEps: 1e-5, RopeTheta: 500000,
}

// feed gives every parameter and input of a stage numbers that depend on its name and place alone.
func feed(st *plan.Stage, given map[*graph.Value]graph.Array) map[*graph.Value]graph.Array {
	out := map[*graph.Value]graph.Array{}
	for _, n := range st.Graph.Nodes {
		if n.Op != graph.ParamOp && n.Op != graph.InputOp {
			continue
		}
		v := n.Results[0]
		a, ok := given[v]
		if !ok {
			a = graph.NewArray(v.Shape...)
			h := uint64(14695981039346656037)
			for _, c := range v.Name() {
				h = (h ^ uint64(c)) * 1099511628211
			}
			for i := range a.Data {
				h = h*6364136223846793005 + 1442695040888963407
				if v.DType == dtype.Int32 {
					a.Data[i] = float64(h >> 33 % 11)
				} else {
					a.Data[i] = float64(int64(h)>>32) / (1 << 32)
				}
			}
		}
		out[v] = a
	}
	return out
}

// A model in stages computes what the whole one does, gradients included, and every part keeps its names.
func TestStagesEqualTheWhole(t *testing.T) {
	for _, tied := range []bool{false, true} {
		t.Run(fmt.Sprintf("tied=%v", tied), func(t *testing.T) {
			c := tiny
			c.Tied = tied
			model := llama3.New(c)
			s := shape{rows: 2, seqLen: 6, dim: c.Dim, compute: dtype.Float32}
			whole, err := trace(model, 0, 1, s, true)
			require.NoError(t, err)
			one := graph.NewArray()
			one.Data[0] = 0.25
			want, err := op.Eval(whole.Graph, feed(whole, map[*graph.Value]graph.Array{whole.Scale: one}))
			require.NoError(t, err)
			wantGrads := map[string]graph.Array{}
			for i, p := range whole.Params {
				wantGrads[p.Name()] = want[whole.Grads[i]]
			}

			cuts := [][]string{{"tok_embeddings"}, {"layers.0", "layers.1"}, {"layers.2", "layers.3", "norm"}, {"lm_head"}}
			var stages []*plan.Stage
			var vals []map[*graph.Value]graph.Array
			var hidden graph.Array
			for i, fqns := range cuts {
				st, err := trace(model.Only(fqns), i, len(cuts), s, true)
				require.NoError(t, err)
				stages = append(stages, st)
				given := map[*graph.Value]graph.Array{}
				if i > 0 {
					given[st.In] = hidden
				}
				v, err := op.Eval(st.Graph, feed(st, given))
				require.NoError(t, err)
				vals = append(vals, v)
				hidden = v[st.Out]
			}
			require.InDelta(t, want[whole.Out].Data[0], hidden.Data[0], 1e-12)

			got := map[string]graph.Array{}
			seed := one
			for i := len(cuts) - 1; i >= 0; i-- {
				st := stages[i]
				given := map[*graph.Value]graph.Array{}
				if st.DOut != nil {
					given[st.DOut] = seed
				} else {
					given[st.Scale] = seed
				}
				if i > 0 {
					given[st.In] = vals[i-1][stages[i-1].Out]
				}
				v, err := op.Eval(st.Graph, feed(st, given))
				require.NoError(t, err)
				for j, p := range st.Params {
					if have, ok := got[p.Name()]; ok { // the tied head: two parts of one gradient
						for k := range have.Data {
							have.Data[k] += v[st.Grads[j]].Data[k]
						}
						continue
					}
					got[p.Name()] = v[st.Grads[j]]
				}
				if i > 0 {
					seed = v[st.DIn]
				}
			}
			require.Len(t, got, len(wantGrads))
			for name, w := range wantGrads {
				require.InDeltaSlice(t, w.Data, got[name].Data, 1e-12, name)
			}
		})
	}
}

// Gradients are made in float32 whatever the model computes in, without a rounding on the way.
func TestGradientsOfABFloat16ModelAreFloat32(t *testing.T) {
	st, err := trace(llama3.New(tiny), 0, 1, shape{rows: 2, seqLen: 6, dim: 12, compute: dtype.BFloat16}, true)
	require.NoError(t, err)
	for i, g := range st.Grads {
		require.Equal(t, dtype.Float32, g.DType, st.Params[i].Name())
		require.NotEqual(t, "cast", g.Node.Op.Name, st.Params[i].Name())
	}
	for _, n := range st.Graph.Nodes {
		if n.Op.Name == "cross_entropy" {
			require.Equal(t, dtype.BFloat16, n.In[0].DType, "the logits are widened inside the loss")
		}
	}
}

// The model knows nothing of how it is spread out.
func TestModelFilesNameNoParallelism(t *testing.T) {
	files, err := filepath.Glob("../model/*/model.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	words := regexp.MustCompile(`(?i)\b(mesh|rank|ranks|shard\w*|replica\w*|collective\w*|all.?gather|all.?reduce|reduce.?scatter|stage|pipeline)\b`)
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Empty(t, words.FindAllString(string(text), -1), f)
	}
}
