package snapshot

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/alloc"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/graph"
	"titan/libtitan/plan"
)

// recordTrace runs an allocator and returns its trace and its counters.
func recordTrace(t require.TestingT, c alloc.Config, run func(a *alloc.Allocator, d *alloc.Virtual)) ([]byte, alloc.Meter) {
	var b bytes.Buffer
	w, err := NewWriter(&b, 1, c)
	require.NoError(t, err)
	d := &alloc.Virtual{}
	a, err := alloc.New(d, alloc.Options{Config: c, Trace: w.Event})
	require.NoError(t, err)
	run(a, d)
	require.NoError(t, w.Close())
	return b.Bytes(), a.Stats().Meter
}

// The allocator's counters, the analysis of its trace, and a replay of the trace are three ways to one result.
func TestTraceTellsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := alloc.Config{
			Policy:       alloc.Policy(rapid.IntRange(0, 2).Draw(t, "policy")),
			Expandable:   rapid.Bool().Draw(t, "expandable"),
			MaxSplitSize: rapid.SampledFrom([]int64{0, 25 << 20}).Draw(t, "max split"),
		}
		data, want := recordTrace(t, c, func(a *alloc.Allocator, d *alloc.Virtual) { exercise(t, a, d) })
		s, err := Parse(data)
		require.NoError(t, err)
		d, err := s.Device(-1)
		require.NoError(t, err)
		require.Equal(t, 1, d.Index)
		r := Analyze(s, d)
		// A deferred free that completes before anything else happens looks like one that was not deferred.
		require.LessOrEqual(t, r.Peak.Pending, want.Peak.Pending)
		want.Peak.Pending = r.Peak.Pending
		require.Equal(t, want, alloc.Meter{Now: r.End, Peak: r.Peak, AtPeakActive: r.AtPeakActive})
		require.NotContains(t, r.Notes, "passed over")
		o, err := Replay{Policy: Recorded, Config: s.Config, AsRecorded: true}.Run(s, d)
		require.NoError(t, err)
		require.Equal(t, want, o.Meter)
		for _, p := range []Policy{Hold, SameStream} {
			o, err := Replay{Policy: p, Config: s.Config}.Run(s, d)
			require.NoError(t, err)
			require.Zero(t, o.Peak.Pending)
			if p == SameStream {
				require.Equal(t, want.Peak.Requested > 0, o.Peak.Requested > 0)
				require.LessOrEqual(t, o.Peak.Requested, want.Peak.Requested)
			}
		}
	})
}

func exercise(t *rapid.T, a *alloc.Allocator, d *alloc.Virtual) {
	var live []*alloc.Block
	sizes := rapid.OneOf(rapid.Int64Range(1, 4096), rapid.Int64Range(1, 3<<20), rapid.Int64Range(1<<20, 40<<20))
	for range rapid.IntRange(1, 60).Draw(t, "steps") {
		switch do := rapid.IntRange(0, 9).Draw(t, "do"); {
		case do < 5 || len(live) == 0:
			b, err := a.Malloc(alloc.Request{Bytes: sizes.Draw(t, "bytes"), Stream: alloc.Stream(rapid.IntRange(0, 1).Draw(t, "stream")), Owner: "layers.0"})
			require.NoError(t, err)
			live = append(live, b)
		case do < 8:
			i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
			if rapid.Bool().Draw(t, "shared") {
				a.Use(live[i], 2)
			}
			require.NoError(t, a.Free(live[i]))
			live = append(live[:i], live[i+1:]...)
		case do == 8:
			d.Finish(2, 1)
			a.Wait(alloc.Stream(rapid.IntRange(0, 1).Draw(t, "waiter")), 2, 0)
		default:
			require.NoError(t, a.EmptyCache())
		}
	}
}

func TestTraceOfADeadProcess(t *testing.T) {
	data, _ := recordTrace(t, alloc.Config{}, func(a *alloc.Allocator, d *alloc.Virtual) {
		_, err := a.Malloc(alloc.Request{Bytes: 5})
		require.NoError(t, err)
	})
	s, err := Parse(data[:len(data)-8])
	require.NoError(t, err)
	require.Len(t, s.Devices[0].Trace, 2)
	_, err = Parse(data[:len(data)-30])
	require.ErrorContains(t, err, "truncated")
}

// A trace with changed bytes is refused in the reader's words, or read as what it then says.
func TestBrokenTrace(t *testing.T) {
	good, _ := recordTrace(t, alloc.Config{}, func(a *alloc.Allocator, d *alloc.Virtual) {
		for range 40 {
			_, err := a.Malloc(alloc.Request{Bytes: 700, Owner: "layers.0"})
			require.NoError(t, err)
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		data := bytes.Clone(good)
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			at := rapid.IntRange(0, len(data)-4).Draw(t, "at")
			copy(data[at:], rapid.SliceOfN(rapid.Byte(), 1, 4).Draw(t, "bytes"))
		}
		if _, err := Parse(data); err != nil {
			require.Equal(t, int(exit.Input), exit.Code(err))
			require.NotContains(t, err.Error(), "\n")
			require.NotContains(t, err.Error(), "runtime error")
		}
	})
}

// A planner puts values anywhere in its arena, also in the middle of free room; the analysis takes its word for it.
func TestArenaTrace(t *testing.T) {
	slot := func(kib, offset, first, last int, class plan.Class) *plan.Slot {
		return &plan.Slot{Type: graph.Type{DType: dtype.UInt8, Shape: []int{kib << 10}}, Class: class, Name: "w", FQN: "layers.0", Offset: offset << 10, First: first, Last: last}
	}
	prog := &plan.Program{ArenaBytes: 64 << 10, ConstBytes: 100, GradsInArena: true, Steps: make([]plan.Step, 4)}
	for i := range prog.Steps {
		prog.Steps[i] = plan.Step{Kind: plan.Accumulate}
	}
	prog.Slots = []*plan.Slot{slot(16, 0, 0, 1, plan.Arena), slot(8, 16, 0, 2, plan.Arena), slot(4, 60, 1, 3, plan.Grad), slot(20, 24, 2, 3, plan.Arena), slot(12, 0, 2, 3, plan.Arena)}
	var b bytes.Buffer
	w, err := NewArenaWriter(&b, 0)
	require.NoError(t, err)
	values := plan.Follow(prog, plan.NewPlaced(prog, w.Event), false)
	for range 2 {
		for i := range prog.Steps {
			_, err := values.Begin(i)
			require.NoError(t, err)
			require.NoError(t, values.End(i))
		}
		values.Join()
	}
	require.NoError(t, w.Close())
	s, err := Parse(b.Bytes())
	require.NoError(t, err)
	require.True(t, s.Planned)
	r := Analyze(s, &s.Devices[0])
	require.Equal(t, Full, r.History)
	require.Empty(t, r.Notes)
	most := int64(8+4+20+12) << 10 // at step 2
	require.Equal(t, alloc.Counts{Requested: most + 100, Allocated: most + 128, Active: most + 128, Reserved: 64<<10 + 128}, r.Peak)
	require.Equal(t, "accumulate < layers.0 < forward", r.Holders[0].Owner)
	require.EqualValues(t, 64<<10-most, r.Fragments["peak_active"].Free)
}
