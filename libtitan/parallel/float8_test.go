package parallel

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
	"titan/libtitan/pass"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// float8Graph is a layer by a recipe, laid out.
func float8Graph(t *testing.T, recipe string, d manifest.MeshDims) *graph.Graph {
	m := float8Manifest(recipe, d)
	c := m.Model.Config
	s := shape{rows: 4, seqLen: 32, dim: c.Dim, compute: dtype.BFloat16}
	on := spread(m, s)
	s.float8 = newFloat8(m, on)
	st, err := trace(llama3.New(c), 0, 1, s, true)
	require.NoError(t, err)
	st, err = shard(st, on)
	require.NoError(t, err)
	return st.Graph
}

func float8Manifest(recipe string, d manifest.MeshDims) *manifest.Manifest {
	c := tiny
	c.Dim, c.NumHeads, c.NumKVHeads, c.HeadDim, c.FFNHidden, c.NumLayers, c.MaxSeqLen = 32, 4, 2, 16, 64, 1, 32
	return &manifest.Manifest{Mesh: &manifest.Mesh{Dims: d}, Model: &manifest.Model{Config: c}, Float8: manifest.NewFloat8(recipe),
		Training: &manifest.Training{SeqLen: 32, MixedPrecisionParam: "bfloat16"}}
}

// sent lists what a graph sends in a phase: the move, how many values of which types, and for which unit.
func sent(t *testing.T, g *graph.Graph, p graph.Phase, keep func(n *graph.Node) bool) (out []string) {
	for _, n := range g.Nodes {
		a, ok := n.Attr.(op.MoveAttr)
		if !ok || n.Phase != p || !keep(n) || n.Op.Name == string(op.Slice) {
			continue
		}
		words := n.Op.Name
		if a.Max {
			words += " max"
		}
		var kinds []string // with how many values of each
		for i, v := range n.In {
			count := 0
			for _, w := range n.In {
				if w.DType == v.DType {
					count++
				}
			}
			if kind := fmt.Sprintf("%d %v", count, v.DType); !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
			require.Equal(t, v.DType, n.Results[i].DType)
		}
		out = append(out, fmt.Sprintf("%s %v of %s: %s", words, a.Axes, strings.Join(kinds, " and "), n.FQN))
	}
	return out
}

// FSDP moves weights as float8 and joins their largest magnitudes in one reduction a step; by row it moves bfloat16, as torchao.
func TestFSDPGathersFloat8(t *testing.T) {
	d := manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}
	all := func(*graph.Node) bool { return true }
	g := float8Graph(t, "tensorwise", d)
	require.Equal(t, []string{
		"all_gather dp_shard of 1 bfloat16: tok_embeddings", "all_reduce max dp_shard of 7 float32: float8",
		"all_gather dp_shard of 2 bfloat16 and 7 float8_e4m3fn: layers.0", "all_gather dp_shard of 2 bfloat16: norm+lm_head",
	}, sent(t, g, graph.Forward, all))
	gathers := func(n *graph.Node) bool { return n.Op.Name == string(op.AllGather) || n.Attr.(op.MoveAttr).Max }
	for _, line := range sent(t, g, graph.Backward, gathers) {
		require.NotContains(t, line, "max", "weights are measured once a step")
	}
	require.Contains(t, sent(t, g, graph.Backward, gathers), "all_gather dp_shard of 7 float8_e4m3fn and 2 bfloat16: layers.0")

	row := sent(t, float8Graph(t, "rowwise", d), graph.Forward, all)
	require.Equal(t, []string{
		"all_gather dp_shard of 1 bfloat16: tok_embeddings", "all_gather dp_shard of 9 bfloat16: layers.0", "all_gather dp_shard of 2 bfloat16: norm+lm_head",
	}, row)
	high := sent(t, float8Graph(t, "rowwise_with_gw_hp", d), graph.Backward, gathers)
	require.Contains(t, high, "all_reduce max dp_shard of 7 float32: float8", "its backward has one scale a weight")
	require.Contains(t, high, "all_gather dp_shard of 7 float8_e4m3fn and 2 bfloat16: layers.0")
}

// Tensor parallelism gathers activations and gradients as float8, after a reduction of one number each.
func TestTensorParallelGathersFloat8(t *testing.T) {
	d := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2}
	layer := func(n *graph.Node) bool { return strings.HasPrefix(n.FQN, "layers.0.") }
	g := float8Graph(t, "tensorwise", d)
	require.Equal(t, []string{
		"all_reduce max tp of 1 float32: layers.0.attention.wq", "all_gather tp of 1 float8_e4m3fn: layers.0.attention.wq",
		"all_reduce max tp of 1 float32: layers.0.attention.wo",
		"all_reduce max tp of 1 float32: layers.0.feed_forward.w1", "all_gather tp of 1 float8_e4m3fn: layers.0.feed_forward.w1",
		"all_reduce max tp of 1 float32: layers.0.feed_forward.w2",
	}, sent(t, g, graph.Forward, layer))
	back := strings.Join(sent(t, g, graph.Backward, layer), "\n")
	require.Contains(t, back, "all_gather tp of 1 float8_e5m2: layers.0.feed_forward.w2")
	require.NotContains(t, back, "all_gather tp of 1 bfloat16")
}

// Data and context parallel ranks have scales of their own: nothing but weights' magnitudes goes between them.
func TestActivationScalesAreEachRanksOwn(t *testing.T) {
	for _, recipe := range []string{"tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		g := float8Graph(t, recipe, manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 2, TP: 1})
		for _, n := range g.Nodes {
			if a, ok := n.Attr.(op.MoveAttr); ok && a.Max {
				require.Equal(t, "float8", n.FQN)
			}
		}
	}
}

// The forward leaves to the backward a byte a number, turned, of what tensorwise multiplies: neither what was cast nor the copy that
// the forward reads outlives it. Weights have both copies, made once a step: the forward's ends with it.
func TestFloat8LeavesBytesForTheBackward(t *testing.T) {
	m := float8Manifest("tensorwise", manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1})
	s := shape{rows: 1, seqLen: 32, dim: 32, compute: dtype.BFloat16}
	on := spread(m, s)
	s.float8 = newFloat8(m, on)
	st, err := trace(llama3.New(m.Model.Config), 0, 1, s, true)
	require.NoError(t, err)
	st, err = shard(st, on)
	require.NoError(t, err)
	st = st.After(pass.Float8Turn(st.Graph, false))
	p, err := plan.Build(plan.Where{Mesh: on.Mesh}, []*plan.Stage{st}, []pipeline.Action{{Kind: pipeline.Forward}, {Kind: pipeline.Backward}}, []int{0})
	require.NoError(t, err)
	begins := slices.IndexFunc(p.Steps, func(s plan.Step) bool { return s.Action.Kind == pipeline.Backward })
	casts := map[op.Copies]int{}
	for i := range p.Steps[:begins] {
		s := &p.Steps[i]
		a, ok := s.Node.Attr.(op.Float8CastAttr)
		if !ok {
			continue
		}
		require.Equal(t, op.Both, a.Copies)
		straight, turned := s.Out[0], s.Out[2]
		require.Equal(t, straight.NumElements(), turned.Bytes())
		require.Less(t, straight.Last, begins, "%s", s)
		require.Greater(t, turned.Last, begins, "%s", s)
		if casts[a.Copies]++; s.Prologue {
			continue
		}
		require.Len(t, turned.Shape, 3)
		if !strings.HasSuffix(s.Node.FQN, "attention.wo") { // whose input attention's own backward reads
			require.Less(t, s.In[0].Last, begins, "%s", s)
		}
	}
	require.Equal(t, map[op.Copies]int{op.Both: 7 + 4}, casts)
}

// The report names each layer with its local sizes and the reason; so do the ranks decide.
func TestFloat8Report(t *testing.T) {
	m := float8Manifest("tensorwise", manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2})
	m.Model.Config.FFNHidden, m.Model.Config.NumLayers = 48, 3
	m.Float8.FilterFQNs = []string{"attention.wo"}
	var log, table bytes.Buffer
	handler := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	require.NoError(t, TellFloat8(m, slog.New(handler), &table))
	require.Equal(t, `level=INFO msg="float8 tensorwise: 9 of 22 linears; not layers.*.attention.wo, float8.filter_fqns has attention.wo; `+
		`not layers.*.feed_forward.w1, out 24 (48 over tp 2) is not divisible by 16; not layers.*.feed_forward.w3, out 24 (48 over tp 2) is not divisible by 16; `+
		`not layers.*.feed_forward.w2, in 24 (48 over tp 2) is not divisible by 16; not lm_head, out 6 (11 over tp 2) is not divisible by 16"`+"\n", log.String())
	require.Equal(t, `float8    3  layers.*.attention.wq     32 x 32
float8    3  layers.*.attention.wk     16 x 32
float8    3  layers.*.attention.wv     16 x 32
bfloat16  3  layers.*.attention.wo     32 x 32  float8.filter_fqns has attention.wo
bfloat16  3  layers.*.feed_forward.w1  24 x 32  out 24 (48 over tp 2) is not divisible by 16
bfloat16  3  layers.*.feed_forward.w3  24 x 32  out 24 (48 over tp 2) is not divisible by 16
bfloat16  3  layers.*.feed_forward.w2  32 x 24  in 24 (48 over tp 2) is not divisible by 16
bfloat16  1  lm_head                   6 x 32   out 6 (11 over tp 2) is not divisible by 16
`, table.String())

	s := shape{rows: 4, seqLen: 32, dim: m.Model.Config.Dim, compute: dtype.BFloat16}
	s.float8 = newFloat8(m, spread(m, s))
	st, err := trace(llama3.New(m.Model.Config), 0, 1, s, true)
	require.NoError(t, err)
	products := 0
	for _, n := range st.Graph.Nodes {
		if n.Op.Name == "float8_product" {
			products++
			require.Contains(t, n.FQN, "attention.w")
		}
	}
	require.Equal(t, 3*9, products, "three products a layer")

	m.Float8.Recipe = "off"
	log.Reset()
	require.NoError(t, TellFloat8(m, slog.New(handler), &table))
	require.Empty(t, log.String())
}
