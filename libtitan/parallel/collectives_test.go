package parallel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
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
	m := &manifest.Manifest{Mesh: &manifest.Mesh{Dims: d}}
	if edit != nil {
		edit(m.Mesh)
	}
	c := tiny
	c.NumHeads, c.NumKVHeads, c.NumLayers = 2, 2, 1
	st, err := trace(llama3.New(c), 0, 1, shape{4, 8, c.Dim, dtype.Float32}, true)
	require.NoError(t, err)
	st, err = shard(st, spread(m))
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
		"bwd all_reduce": 2, // the norms' weights, which every rank holds
	}, collectives(sharded(t, tp, nil), layer))
	require.Equal(t, map[string]int{"fwd all_reduce": 2, "bwd all_reduce": 2},
		collectives(sharded(t, tp, func(m *manifest.Mesh) { m.DisableSequenceParallel = true }), layer))
}

// FSDP gathers each of a layer's nine parameters before it is used, forward and backward, and scatters its gradient.
func TestFSDPCollectivesOfALayer(t *testing.T) {
	layer := func(n *graph.Node) bool { return len(n.FQN) > 7 && n.FQN[:7] == "layers." }
	fsdp := manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1}
	require.Equal(t, map[string]int{"fwd all_gather": 9, "bwd all_gather": 9, "bwd reduce_scatter": 9}, collectives(sharded(t, fsdp, nil), layer))
	kept := collectives(sharded(t, fsdp, func(m *manifest.Mesh) { m.ReshardAfterForward = "never" }), layer)
	require.Equal(t, map[string]int{"fwd all_gather": 9, "bwd reduce_scatter": 9}, kept)
	ddp := manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 1, CP: 1, TP: 1}
	require.Equal(t, map[string]int{"bwd all_reduce": 9}, collectives(sharded(t, ddp, nil), layer))
}
