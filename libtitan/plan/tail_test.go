package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// A step of FSDP ends with waits for its last reductions, which have all begun by then; the gradients that are whole before those
// waits are reduced and waited for, no later step writes them, and they are most. Without reductions beside the work there is no
// such end, nor on a CPU.
func TestTail(t *testing.T) {
	fsdp := func(set func(m *manifest.Manifest)) func(m *manifest.Manifest) {
		return func(m *manifest.Manifest) {
			m.Mesh.Dims.DPShard, m.Model.Config.NumLayers = 2, 4
			set(m)
		}
	}
	layer, both := []string{"layers.0.attention_norm.weight"}, []string{"layers.0.attention_norm.weight", "tok_embeddings.weight"}
	for _, c := range []struct {
		name string
		set  func(m *manifest.Manifest)
		last []string // gradients that are waited for at the end
	}{
		{"fsdp", fsdp(func(*manifest.Manifest) {}), layer},
		{"tied", fsdp(func(m *manifest.Manifest) { m.Model.Config.Tied = true }), both},
		{"float8", fsdp(inFloat8("tensorwise")), layer},
		{"accumulation", fsdp(func(m *manifest.Manifest) { m.Training.GradAccumSteps = 2 }), layer},
		{"hsdp", fsdp(func(m *manifest.Manifest) { m.Mesh.Dims.DPReplicate = 2 }), both},
		{"tp", fsdp(func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }), layer},
		{"tp alone", func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }, layer},
		{"one rank", func(*manifest.Manifest) {}, nil},
		{"one rank, accumulation", func(m *manifest.Manifest) { m.Training.GradAccumSteps = 2 }, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := smallJob(t, c.set)
			for rank := range j.NumRanks() {
				p, err := j.Program(rank)
				require.NoError(t, err)
				_, whole := p.Tail()
				require.Empty(t, whole, "on a CPU")
				p.ForGPU()
				first, whole := p.Tail()
				require.Equal(t, c.last != nil, first < len(p.Steps))
				if c.last == nil {
					require.Empty(t, whole)
					continue
				}
				require.Greater(t, len(whole), len(j.Held(rank))/2)
				require.Contains(t, whole, "layers.1.feed_forward.w1.weight")
				for _, fqn := range c.last {
					require.NotContains(t, whole, fqn)
				}
				wholeBefore(t, p, first, whole)
			}
		})
	}
}

// wholeBefore checks that all that makes the gradients named is done before step first, and that only waits follow.
func wholeBefore(t *testing.T, p *plan.Program, first int, whole map[string]bool) {
	waited := map[*plan.Slot]bool{} // of what reductions make: whether it is waited for
	for i := range p.Steps {
		s := &p.Steps[i]
		reduces := s.Aside && s.Node.Op.Name != "all_gather"
		require.True(t, i < first || s.Kind == plan.Accumulate, "step %d, %s, waits or adds", i, s)
		for _, in := range s.In {
			waited[in] = true
		}
		for _, out := range s.Out {
			if reduces {
				waited[out] = false
			}
			require.False(t, i >= first && whole[out.Name], "step %d, %s, writes a whole gradient", i, s)
		}
		if i != first-1 {
			continue
		}
		for slot, is := range waited {
			require.True(t, is || !whole[slot.Name], "%s is not waited for", slot.Name)
		}
	}
	last := p.Steps[first:]
	require.True(t, slices.ContainsFunc(last, func(s plan.Step) bool { return !waitedBefore(p, first, s.In[0]) }), "something is under way")
}

// waitedBefore reports whether a step before first reads slot after it was last made.
func waitedBefore(p *plan.Program, first int, slot *plan.Slot) (is bool) {
	for i := range p.Steps[:first] {
		is = is && !slices.Contains(p.Steps[i].Out, slot) || slices.Contains(p.Steps[i].In, slot)
	}
	return is
}
