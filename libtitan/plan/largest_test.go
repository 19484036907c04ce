package plan_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
	"titan/libtitan/plan"
)

// largest counts the steps of p that read a value for its largest magnitude alone, and those of RoPE that tell theirs: it is there from
// then on.
func largest(t *testing.T, p *plan.Program) (found, told int) {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind != plan.Compute {
			continue
		}
		if s.Node.Op.Name == "amax" {
			found++
		}
		if s.Node.Op.Name != "rope" || len(s.Out) == 1 {
			continue
		}
		told++
		require.Len(t, s.Add, 2)
		require.Equal(t, 1, s.Out[1].NumElements())
		require.Contains(t, p.Slots, s.Out[1])
		require.Equal(t, i, s.Out[1].First)
		require.Less(t, i, s.Out[1].Last)
	}
	return found, told
}

// Tensorwise, RoPE's backward tells the largest magnitudes of the gradients of queries and keys, whatever the arrangement of one
// step; no step tells those of rows.
func TestLargestWhereMade(t *testing.T) {
	tensorwise := func(set func(m *manifest.Manifest)) func(m *manifest.Manifest) {
		return func(m *manifest.Manifest) {
			inFloat8("tensorwise")(m)
			set(m)
		}
	}
	const layers = 2
	for _, c := range []struct {
		name string
		set  func(m *manifest.Manifest)
		told int
	}{
		{"bfloat16", func(*manifest.Manifest) {}, 0},
		{"rowwise", inFloat8("rowwise"), 0},
		{"rowwise_with_gw_hp", inFloat8("rowwise_with_gw_hp"), 0},
		{"tensorwise", inFloat8("tensorwise"), 2 * layers},
		{"compiled", tensorwise(func(m *manifest.Manifest) {
			m.Compile = &manifest.Compile{Enable: true, Components: []string{"model", "loss"}}
		}), 2 * layers},
		{"activation checkpointing", tensorwise(func(m *manifest.Manifest) { m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: "full"} }), 2 * layers},
		{"accumulation", tensorwise(func(m *manifest.Manifest) { m.Training.GradAccumSteps = 2 }), 2 * 2 * layers},
		{"tp", tensorwise(func(m *manifest.Manifest) { m.Mesh.Dims.TP = 2 }), 2 * layers},
		{"cp", tensorwise(func(m *manifest.Manifest) { m.Mesh.Dims.CP = 2 }), 2 * layers},
		{"dp_shard", tensorwise(func(m *manifest.Manifest) { m.Mesh.Dims.DPShard = 2 }), 2 * layers},
		{"pp", tensorwise(pipelined(4)), 4 * 2 * layers / 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			j := smallJob(t, c.set)
			kept, err := j.Program(0)
			require.NoError(t, err)
			kept.KeepCopies()
			before, none := largest(t, kept)
			require.Zero(t, none, "as it runs on a CPU")
			for _, arrange := range []func(p *plan.Program){(*plan.Program).ForGPU, (*plan.Program).ForCache} {
				p, err := j.Program(0)
				require.NoError(t, err)
				arrange(p)
				found, told := largest(t, p)
				require.Equal(t, c.told, told)
				require.Equal(t, before-c.told, found)
				p.LargestWhereMade()
				again, _ := largest(t, p)
				require.Equal(t, found, again)
			}
		})
	}
}

// A step tells the largest magnitude of what it makes alone, and of all of it.
func TestLargestWhereMadeAsks(t *testing.T) {
	toldOf := func(change func(p *plan.Program)) int {
		p, err := smallJob(t, inFloat8("tensorwise")).Program(0)
		require.NoError(t, err)
		change(p)
		p.LargestWhereMade()
		_, told := largest(t, p)
		return told
	}
	require.Equal(t, 4, toldOf(func(*plan.Program) {}))
	require.Equal(t, 4, toldOf(func(p *plan.Program) {
		for _, s := range p.Steps {
			if s.Kind == plan.Compute && s.Node.Op.Name == "amax" {
				other := *s.Out[0]
				s.Out = []*plan.Slot{&other}
				p.Steps = append(p.Steps, s)
			}
		}
	}), "two steps read it, for one it is told")
	require.Zero(t, toldOf(func(p *plan.Program) {
		for _, s := range p.Steps {
			if s.Kind == plan.Compute && s.Node.Op.Name == "amax" {
				part := *s.In[0]
				part.Of, part.Shape = s.In[0].Root(), append([]int{1}, part.Shape[1:]...)
				s.In[0] = &part
			}
		}
	}), "it reads a part")
	require.Zero(t, toldOf(func(p *plan.Program) { p.Steps = append(p.Steps, slices.Clone(p.Steps)...) }), "two steps make it")
}
