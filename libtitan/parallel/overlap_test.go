package parallel

import (
	"fmt"
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
	c, s := m.Model.Config, shape{rows: 2 * ranks, seqLen: 8, dim: m.Model.Config.Dim, compute: dtype.BFloat16}
	on := spread(m, s)
	s.float8 = newFloat8(m, on)
	c.NumLayers = 4
	c.VocabSize = 48
	st, err := trace(llama3.New(c), 0, 1, s, true)
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
	for k := range gathersAre {
		require.Less(t, gathersAre[k], gathersWere[k])
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

// However early a gather comes, every step reads what the same steps made as before: also where all is gathered once a step, as
// with reshard_after_forward never and in pipelines, and where a gather is the first step of all, as in float32.
func TestOverlapKeepsWhatStepsRead(t *testing.T) {
	for _, recipe := range []string{"float32", "off", "tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		for _, c := range []struct {
			dims    manifest.MeshDims
			reshard string
		}{
			{manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, "always"},
			{manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, "never"},
			{manifest.MeshDims{PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 2, EP: 1}, "never"},
			{manifest.MeshDims{PP: 2, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, "default"},
		} {
			m := compiledJob(t, 4, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}).Manifest
			m.Mesh.Dims, m.Mesh.WorldSize, m.Mesh.ReshardAfterForward = c.dims, c.dims.PP*c.dims.DPReplicate*c.dims.DPShard*c.dims.TP, c.reshard
			m.Training.LocalBatchSize = 8 / (c.dims.DPReplicate * c.dims.DPShard)
			m.Compile.Enable = false
			if recipe == "float32" {
				m.Training.MixedPrecisionParam = recipe
			} else {
				m.Float8 = manifest.NewFloat8(recipe)
			}
			if all := pipeline.Modules(4); c.dims.PP == 2 {
				m.Pipeline = &manifest.Pipeline{Schedule: "1F1B", NumMicrobatches: 4, Stages: []manifest.Stage{{FQNs: all[:3]}, {Stage: 1, PPRank: 1, FQNs: all[3:]}}}
			}
			m.Derive()
			j, err := New(m)
			require.NoError(t, err)
			for rank := range j.NumRanks() {
				p, err := j.Program(rank)
				require.NoError(t, err)
				before := makers(p)
				p.Overlap()
				require.Equal(t, before, makers(p), "%s, %+v, rank %d", recipe, c, rank)
			}
		}
	}
}

// makers is, for each step, those that made what it reads, in order; "" for what is there from the start.
func makers(p *plan.Program) map[string][]string {
	made, times, out := map[*plan.Slot]string{}, map[string]int{}, map[string][]string{}
	for i := range p.Steps {
		s := &p.Steps[i]
		name := fmt.Sprint(s, s.Action)
		times[name]++
		name = fmt.Sprint(name, " no. ", times[name])
		for _, in := range s.In {
			out[name] = append(out[name], made[in.Root()])
		}
		for k, o := range s.Out {
			if len(s.Add) > k && s.Add[k] {
				out[name] = append(out[name], made[o.Root()])
			}
		}
		for _, o := range s.Out {
			made[o.Root()] = name
		}
	}
	return out
}
