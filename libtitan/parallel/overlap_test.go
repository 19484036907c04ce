package parallel

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pass"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// fsdpProgram is two microbatches of four layers on one of two ranks, by a recipe of float8.
func fsdpProgram(t *testing.T, recipe string, rank int) *plan.Program {
	return shardedProgram(t, recipe, rank, 2)
}

// shardedProgram is the same on one of ranks.
func shardedProgram(t *testing.T, recipe string, rank, ranks int) *plan.Program {
	m := float8Manifest(recipe, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: ranks, CP: 1, TP: 1, EP: 1})
	c, on := m.Model.Config, spread(m)
	c.NumLayers = 4
	c.VocabSize = 48
	st, err := trace(llama3.New(c), 0, 1, shape{rows: 2 * ranks, seqLen: 8, dim: c.Dim, compute: dtype.BFloat16, float8: newFloat8(m, on)}, true)
	require.NoError(t, err)
	st, err = shard(st, on)
	require.NoError(t, err)
	st = st.After(pass.Float8Turn(st.Graph, false))
	var actions []pipeline.Action
	for i := range 2 {
		for _, kind := range []pipeline.Kind{pipeline.Forward, pipeline.Backward} {
			actions = append(actions, pipeline.Action{Kind: kind, Microbatch: i})
		}
	}
	p, err := plan.Build(plan.Where{Mesh: on.Mesh, Coord: on.Mesh.Coord(rank)}, []*plan.Stage{st}, actions, []int{0})
	require.NoError(t, err)
	return p
}

// Gathers come one unit earlier, reductions begin before attention, what they leave is added one unit later, and all else stays in
// order; what is live at once still has places of its own.
func TestOverlap(t *testing.T) {
	for _, recipe := range []string{"off", "tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		t.Run(recipe, func(t *testing.T) { checkOverlap(t, recipe) })
	}
}

func checkOverlap(t *testing.T, recipe string) {
	before, after := fsdpProgram(t, recipe, 0), fsdpProgram(t, recipe, 0)
	after.Overlap()
	require.Len(t, after.Steps, len(before.Steps))
	order := func(p *plan.Program, keep func(s *plan.Step) bool) (names []string, at []int) {
		for i := range p.Steps {
			if s := &p.Steps[i]; keep(s) {
				names, at = append(names, s.String()), append(at, i)
			}
		}
		return names, at
	}
	isGather := func(s *plan.Step) bool { return s.Kind == plan.Compute && s.Node.Op.Name == "all_gather" }
	isSum := func(s *plan.Step) bool { return s.Kind == plan.Accumulate }
	isReduction := func(s *plan.Step) bool { return s.Kind == plan.Compute && s.Node.Op.Name == "reduce_scatter" }
	isElse := func(s *plan.Step) bool { return !isGather(s) && !isSum(s) && !isReduction(s) }
	for _, keep := range []func(s *plan.Step) bool{isGather, isSum, isReduction, isElse} {
		was, _ := order(before, keep)
		is, _ := order(after, keep)
		require.Equal(t, was, is)
	}
	_, gathersWere := order(before, isGather)
	_, gathersAre := order(after, isGather)
	require.Greater(t, len(gathersAre), 4)
	require.Equal(t, gathersAre[0]+1, gathersAre[1])
	for k := range gathersAre[3:] {
		require.Less(t, gathersAre[k+2], gathersWere[k+3])
	}
	reductions := 0
	for i := range after.Steps {
		if s := &after.Steps[i]; s.Aside && !isGather(s) {
			reductions++
			if unit := s.Node.FQN; unit != "layers.0" && unit != "tok_embeddings" {
				require.Contains(t, after.Steps[i+1].Node.Op.Name, "attention", "after the reduction of %s", unit)
			}
			require.False(t, isSum(&after.Steps[i+1]) && slices.Contains(s.Out, after.Steps[i+1].In[0]) && i+1+len(s.Out) < len(after.Steps), "step %d is added at once", i)
			for _, in := range s.In { // held until its sums are added
				next := slices.IndexFunc(after.Steps[i+1:], func(n plan.Step) bool { return n.Kind == plan.Accumulate && slices.Contains(s.Out, n.In[0]) })
				require.GreaterOrEqual(t, in.Root().Last, i+1+next)
			}
		}
	}
	require.Greater(t, reductions, 4)
	for i, a := range after.Slots {
		require.LessOrEqual(t, a.Offset+a.Bytes(), after.ArenaBytes)
		for _, b := range after.Slots[i+1:] {
			apart := a.Last < b.First || b.Last < a.First || a.Offset+a.Bytes() <= b.Offset || b.Offset+b.Bytes() <= a.Offset
			require.True(t, apart, "%s and %s share memory", a.FQN, b.FQN)
		}
	}
}
