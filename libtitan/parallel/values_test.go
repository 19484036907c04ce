package parallel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
)

// meshProgram is rank 0's step of two microbatches of three layers, with gathers ahead.
func meshProgram(t *testing.T, d manifest.MeshDims) *plan.Program {
	m := float8Manifest("off", d)
	c := m.Model.Config
	s := shape{rows: 4, seqLen: 32, dim: c.Dim, compute: dtype.BFloat16}
	on := spread(m, s)
	c.NumLayers = 3
	st, err := trace(llama3.New(c), 0, 1, s, true)
	require.NoError(t, err)
	st, err = shard(st, on)
	require.NoError(t, err)
	var actions []pipeline.Action
	for i := range 2 {
		actions = append(actions, pipeline.Action{Kind: pipeline.Forward, Microbatch: i}, pipeline.Action{Kind: pipeline.Backward, Microbatch: i})
	}
	p, err := plan.Build(plan.Where{Mesh: on.Mesh, Coord: on.Mesh.Coord(0)}, []*plan.Stage{st}, actions, []int{0})
	require.NoError(t, err)
	p.Overlap()
	p.PlaceGrads()
	return p
}

// hazards is a Keeper in a caching allocator that knows what other streams still use.
type hazards struct {
	*plan.Cached
	t    *testing.T
	busy map[alloc.Stream][]span // uses that the compute stream has not waited for, in order
}

type span struct{ from, to uint64 }

func (h *hazards) Take(s *plan.Slot, owner string) error {
	require.NoError(h.t, h.Cached.Take(s, owner))
	at, _ := h.Addr(s)
	for stream, list := range h.busy {
		for _, b := range list {
			require.False(h.t, at < b.to && b.from < at+uint64(max(1, s.Bytes())), "%s is given memory that stream %d still uses", owner, stream)
		}
	}
	return nil
}

func (h *hazards) Use(s *plan.Slot, on alloc.Stream) {
	at, ok := h.Addr(s)
	require.True(h.t, ok)
	h.busy[on] = append(h.busy[on], span{at, at + uint64(s.Bytes())})
	h.Cached.Use(s, on)
}

func (h *hazards) Wait(on alloc.Stream, later int) {
	require.LessOrEqual(h.t, later, len(h.busy[on]))
	h.busy[on] = h.busy[on][len(h.busy[on])-later:]
	h.Cached.Wait(on, later)
}

// Under every policy nothing is given memory that another stream uses, what a move makes is read after a wait for it, and
// the end finds nothing left; record-stream holds more than hold, and that no more than is live.
func TestValuesInACache(t *testing.T) {
	for _, d := range []manifest.MeshDims{
		{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1}, {PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 2, EP: 1},
		{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 2, EP: 1}, {PP: 1, DPReplicate: 2, DPShard: 2, CP: 1, TP: 1, EP: 1},
	} {
		t.Run(fmt.Sprintf("dp_replicate %d dp_shard %d tp %d", d.DPReplicate, d.DPShard, d.TP), func(t *testing.T) {
			prog := meshProgram(t, d)
			var peaks []alloc.Counts
			for p := range alloc.Policies {
				peaks = append(peaks, playValues(t, prog, alloc.Policy(p)))
			}
			require.Zero(t, peaks[alloc.Hold].Pending)
			require.Positive(t, peaks[alloc.RecordStream].Pending)
			require.Greater(t, peaks[alloc.RecordStream].Requested, peaks[alloc.Hold].Requested)
			require.LessOrEqual(t, peaks[alloc.SameStream].Requested, peaks[alloc.Hold].Requested)
			require.LessOrEqual(t, peaks[alloc.SameStream].Requested, int64(prog.ArenaBytes))
		})
	}
}

func playValues(t *testing.T, prog *plan.Program, p alloc.Policy) alloc.Counts {
	device := &alloc.Virtual{}
	a, err := alloc.New(device, alloc.Options{Config: alloc.Config{Policy: p}})
	require.NoError(t, err)
	h := &hazards{Cached: plan.NewCached(a), t: t, busy: map[alloc.Stream][]span{}}
	v := plan.Follow(prog, h, p == alloc.SameStream)
	for range 2 {
		waited := map[alloc.Stream]int{} // up to which step
		makers := map[*plan.Slot]int{}
		for i := range prog.Steps {
			after, err := v.Begin(i)
			require.NoError(t, err)
			for _, j := range after {
				require.Less(t, j, i)
				waited[v.Stream(j)] = max(waited[v.Stream(j)], j)
			}
			for _, s := range prog.Steps[i].In {
				if m, ok := makers[s.Root()]; ok && v.Stream(m) != plan.ComputeStream {
					require.GreaterOrEqual(t, waited[v.Stream(m)], m, "step %d reads what step %d makes", i, m)
				}
			}
			for _, s := range slices.Concat(prog.Steps[i].In, prog.Steps[i].Out) {
				if s.Root().Class == plan.Arena {
					_, ok := h.Addr(s)
					require.True(t, ok, "step %d touches a value of %s that has no memory", i, s.FQN)
				}
			}
			for _, s := range prog.Steps[i].Out {
				makers[s.Root()] = i
			}
			require.NoError(t, v.End(i))
		}
		v.Join()
		device.FinishAll()
		require.NoError(t, a.EmptyCache())
		require.Zero(t, a.Stats().Now)
	}
	return a.Stats().Peak
}

// What is told of planned memory never overlaps, in the arena or in the windows, and ends when the step does.
func TestValuesInPlace(t *testing.T) {
	prog := meshProgram(t, manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 2, CP: 1, TP: 1, EP: 1})
	prog.PlaceWindows()
	require.Positive(t, prog.WindowBytes)
	live := map[uint64]int64{}
	var moved, waits int
	keep := plan.NewPlaced(prog, func(e alloc.Event) {
		switch e.Action {
		case alloc.Alloc:
			for at, size := range live {
				require.False(t, e.Addr < at+uint64(size) && at < e.Addr+uint64(e.Size), "%s", e.Owner)
			}
			live[e.Addr] = e.Size
		case alloc.FreeCompleted:
			require.Equal(t, live[e.Addr], e.Size)
			delete(live, e.Addr)
		case alloc.Use:
			require.Contains(t, live, e.Addr)
			moved++
		case alloc.Wait:
			waits++
		}
	})
	v := plan.Follow(prog, keep, false)
	fixed := len(live)
	for range 2 {
		for i := range prog.Steps {
			_, err := v.Begin(i)
			require.NoError(t, err)
			require.NoError(t, v.End(i))
		}
		v.Join()
		require.Len(t, live, fixed)
	}
	require.Positive(t, moved)
	require.Positive(t, waits)
}
