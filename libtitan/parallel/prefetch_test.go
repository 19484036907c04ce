package parallel

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// fsdpProgram is two microbatches of four layers on two ranks.
func fsdpProgram(t *testing.T) *plan.Program {
	m := &manifest.Manifest{Mesh: &manifest.Mesh{Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}}, Model: &manifest.Model{}}
	c := tiny
	c.NumLayers = 4
	st, err := trace(llama3.New(c), 0, 1, shape{4, 8, c.Dim, dtype.BFloat16}, true)
	require.NoError(t, err)
	on := spread(m)
	st, err = shard(st, on)
	require.NoError(t, err)
	var actions []pipeline.Action
	for i := range 2 {
		for _, kind := range []pipeline.Kind{pipeline.Forward, pipeline.Backward} {
			actions = append(actions, pipeline.Action{Kind: kind, Microbatch: i})
		}
	}
	p, err := plan.Build(plan.Where{Mesh: on.Mesh}, []*plan.Stage{st}, actions, []int{0})
	require.NoError(t, err)
	return p
}

// Gathers come one unit earlier and all else stays in order; what is live at once still has places of its own.
func TestPrefetch(t *testing.T) {
	before, after := fsdpProgram(t), fsdpProgram(t)
	after.Prefetch()
	split := func(p *plan.Program) (gathers, rest []string, at []int) {
		for i := range p.Steps {
			if s := &p.Steps[i]; s.Gathers() {
				gathers, at = append(gathers, s.String()), append(at, i)
			} else {
				rest = append(rest, s.String())
			}
		}
		return gathers, rest, at
	}
	gathersBefore, restBefore, placeBefore := split(before)
	gathersAfter, restAfter, placeAfter := split(after)
	require.Equal(t, gathersBefore, gathersAfter)
	require.Equal(t, restBefore, restAfter)
	require.Greater(t, len(placeAfter), 4)
	for k := range placeAfter[2:] { // each is made right after the one before it was
		require.Less(t, placeAfter[k+2], placeBefore[k+2])
	}
	for i, a := range after.Slots {
		require.LessOrEqual(t, a.Offset+a.Bytes(), after.ArenaBytes)
		for _, b := range after.Slots[i+1:] {
			apart := a.Last < b.First || b.Last < a.First || a.Offset+a.Bytes() <= b.Offset || b.Offset+b.Bytes() <= a.Offset
			require.True(t, apart, "%s and %s share memory", a.FQN, b.FQN)
		}
	}
}
