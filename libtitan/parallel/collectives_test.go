package parallel

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/op"
)

// collectives counts the moves that send something, by phase and name, among the nodes that keep wants.
func collectives(g *graph.Graph, keep func(n *graph.Node) bool) map[string]int {
	out := map[string]int{}
	for _, n := range g.Nodes {
		switch n.Op.Name {
		case "all_gather", "all_reduce", "reduce_scatter", "all_to_all":
			if keep(n) {
				out[n.Phase.String()+" "+n.Op.Name]++
			}
		}
	}
	return out
}

func sharded(t *testing.T, d manifest.MeshDims, edit func(m *manifest.Mesh)) *graph.Graph {
	return shardedModel(t, tiny, d, edit)
}

// shardedModel is a layer of a model like c on 32 tokens, in float32.
func shardedModel(t *testing.T, c manifest.ModelConfig, d manifest.MeshDims, edit func(m *manifest.Mesh)) *graph.Graph {
	c.NumHeads, c.NumKVHeads, c.NumLayers = 2, 2, 1
	m := &manifest.Manifest{Mesh: &manifest.Mesh{Dims: d}, Model: &manifest.Model{Config: c}}
	if edit != nil {
		edit(m.Mesh)
	}
	s := shape{rows: 4, seqLen: 8, dim: c.Dim, compute: dtype.Float32}
	st, err := trace(llama3.New(c), 0, 1, s, true)
	require.NoError(t, err)
	st, err = shard(st, spread(m, s))
	require.NoError(t, err)
	return st.Graph
}

// With the vocabulary cut, the loss costs three all-reduces forward and nothing backward.
func TestLossParallelSendsThreeReductions(t *testing.T) {
	loss := func(n *graph.Node) bool { return n.FQN == "" }
	tp := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2}
	require.Equal(t, map[string]int{"fwd all_reduce": 3}, collectives(sharded(t, tp, nil), loss))
	whole := collectives(sharded(t, tp, func(m *manifest.Mesh) { m.DisableLossParallel = true }), loss)
	require.Equal(t, map[string]int{"fwd all_gather": 1}, whole)
}

// What a layer sends: sequence parallelism gathers before attention and the network and scatters after them, and so
// does its backward; without it the sums are reduced whole, once a half and direction.
func TestTensorParallelCollectivesOfALayer(t *testing.T) {
	layer := func(n *graph.Node) bool { return len(n.FQN) > 7 && n.FQN[:7] == "layers." }
	tp := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2}
	require.Equal(t, map[string]int{
		"fwd all_gather": 2, "fwd reduce_scatter": 2, "bwd all_gather": 2, "bwd reduce_scatter": 2,
		"bwd all_reduce": 1, // the norms' weights, which every rank holds
	}, collectives(sharded(t, tp, nil), layer))
	require.Equal(t, map[string]int{"fwd all_reduce": 2, "bwd all_reduce": 2},
		collectives(sharded(t, tp, func(m *manifest.Mesh) { m.DisableSequenceParallel = true }), layer))
}

// FSDP gathers the nine parameters of a layer at once where the first is used, forward and backward, and scatters their
// gradients at once when the last is made. The embedding is a unit of its own; the last norm and the head are one.
func TestFSDPMovesUnits(t *testing.T) {
	units := func(dims manifest.MeshDims, reshard string) (out []string) {
		for _, n := range sharded(t, dims, func(m *manifest.Mesh) { m.ReshardAfterForward = reshard }).Nodes {
			if a, ok := n.Attr.(op.MoveAttr); ok && n.FQN != "" {
				out = append(out, fmt.Sprintf("%v %s %v of %d: %s", n.Phase, n.Op.Name, a.Axes, len(n.In), n.FQN))
			}
		}
		return out
	}
	forward := []string{
		"fwd all_gather dp_shard of 1: tok_embeddings", "fwd all_gather dp_shard of 9: layers.0", "fwd all_gather dp_shard of 2: norm+lm_head",
	}
	last := []string{"bwd reduce_scatter dp_shard of 2: norm+lm_head"}
	layer := []string{"bwd reduce_scatter dp_shard of 9: layers.0", "bwd reduce_scatter dp_shard of 1: tok_embeddings"}
	fsdp := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}
	again := []string{"bwd all_gather dp_shard of 2: norm+lm_head", "bwd all_gather dp_shard of 9: layers.0"}
	require.Equal(t, slices.Concat(forward, again[:1], last, again[1:], layer), units(fsdp, "always"))
	require.Equal(t, slices.Concat(forward, last, again[1:], layer), units(fsdp, "default"), "the last unit is kept for the backward")
	require.Equal(t, slices.Concat(forward, last, layer), units(fsdp, "never"))
	ddp := manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 1, CP: 1, TP: 1}
	require.Equal(t, []string{
		"bwd all_reduce dp_replicate of 2: norm+lm_head", "bwd all_reduce dp_replicate of 9: layers.0", "bwd all_reduce dp_replicate of 1: tok_embeddings",
	}, units(ddp, "default"))
	hsdp := manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1}
	require.Equal(t, slices.Concat(forward, []string{
		"bwd reduce_scatter dp_shard of 2: norm+lm_head", "bwd all_reduce dp_replicate of 2: norm+lm_head",
		"bwd reduce_scatter dp_shard of 9: layers.0", "bwd all_reduce dp_replicate of 9: layers.0",
		"bwd reduce_scatter dp_shard of 1: tok_embeddings", "bwd all_reduce dp_replicate of 1: tok_embeddings",
	}), units(hsdp, "never"))
}

// The embedding's table stays where FSDP stores it if two rows a token are fewer bytes to send than the table and its gradient:
// tokens and rows go round, whatever else cuts them, and the gradient is made where it stays.
func TestRowsTravelWhereTheyAreFewer(t *testing.T) {
	embedding := func(vocab int, tied bool, d manifest.MeshDims) (out []string) {
		c := tiny
		c.VocabSize, c.Tied = vocab, tied
		for _, n := range shardedModel(t, c, d, nil).Nodes {
			if a, ok := n.Attr.(op.MoveAttr); ok && strings.HasPrefix(n.FQN, "tok_embeddings") {
				out = append(out, fmt.Sprintf("%v %s %v %v", n.Phase, n.Op.Name, a.Axes, n.Results[0].Shape))
			}
		}
		return out
	}
	fsdp := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}
	require.Equal(t, []string{"fwd all_gather dp_shard [32 12]", "bwd reduce_scatter dp_shard [32 12]"}, embedding(32, false, fsdp))
	rows := []string{"fwd all_gather dp_shard [4 8]", "fwd reduce_scatter dp_shard [4 8 12]", "bwd all_gather dp_shard [4 8 12]"}
	require.Equal(t, rows, embedding(33, false, fsdp))
	require.Equal(t, "fwd all_gather dp_shard [33 12]", embedding(33, true, fsdp)[0], "the head needs the table whole")
	all := manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 2, TP: 2}
	require.Equal(t, []string{
		"fwd all_gather cp [4 8]", "fwd all_gather dp_shard [4 8]",
		"fwd reduce_scatter dp_shard [4 8 12]", "fwd reduce_scatter cp [4 8 12]", "fwd reduce_scatter tp [4 8 12]",
		"bwd all_gather tp [4 8 12]", "bwd all_gather cp [4 8 12]", "bwd all_gather dp_shard [4 8 12]", "bwd all_reduce dp_replicate [33 12]",
	}, embedding(33, false, all))
}
