package parallel

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
	"titan/libtitan/plan"
)

// windowed is fsdpProgram of a rank as a GPU runs it.
func windowed(t *testing.T, recipe string, rank int) *plan.Program {
	p := fsdpProgram(t, recipe, rank)
	p.Overlap()
	p.PlaceWindows()
	return p
}

// What is gathered lies at one place on all ranks, each rank's shard in its place there; nothing that lives at once
// shares memory; and what is computed is what was computed before.
func TestWindows(t *testing.T) {
	for _, recipe := range []string{"off", "tensorwise", "rowwise"} {
		t.Run(recipe, func(t *testing.T) { checkWindows(t, recipe) })
	}
}

func checkWindows(t *testing.T, recipe string) {
	first := windowed(t, recipe, 0)
	require.NotEmpty(t, first.Windows)
	for rank := range 2 {
		p := windowed(t, recipe, rank)
		require.Equal(t, first.WindowBytes, p.WindowBytes)
		require.Len(t, p.Windows, len(first.Windows))
		for i, s := range p.Windows {
			require.Equal(t, first.Windows[i].Offset, s.Offset)
			require.Equal(t, first.Windows[i].Shape, s.Shape)
		}
		require.Len(t, p.Steps, len(first.Steps))
		shardsInPlace(t, p, rank)
		apart(t, p.Windows, p.WindowBytes)
		apart(t, p.Slots, p.ArenaBytes)
	}
}

// shardsInPlace checks the gathers of a program, and that each shard is made anew between the gather and the last use of
// what was there.
func shardsInPlace(t *testing.T, p *plan.Program, rank int) {
	gathered := 0
	for i := range p.Steps {
		s := &p.Steps[i]
		for _, in := range s.In {
			require.True(t, in.Class == plan.Param || in.Class > plan.Arena && in.Class != plan.Window || in.Root().First <= i && i <= in.Root().Last, s)
		}
		if !s.Aside || s.Node.Op.Name != "all_gather" {
			continue
		}
		for k, in := range s.In {
			rows := s.Node.In[k].Shape[0]
			require.Equal(t, rows%2 == 0 && in.Bytes()%16 == 0, s.Out[k].Class == plan.Window, "%s: %d rows", s, rows)
			if s.Out[k].Class != plan.Window {
				continue
			}
			gathered++
			require.Same(t, s.Out[k], in.Root())
			require.Equal(t, rank*in.Bytes(), in.Start)
			require.Equal(t, 2*in.Bytes(), s.Out[k].Bytes())
			maker := slices.IndexFunc(p.Steps[:i], func(m plan.Step) bool { return slices.Contains(m.Out, in) })
			require.GreaterOrEqual(t, maker, i-len(s.In), s)
			require.Equal(t, maker, s.Out[k].First)
		}
	}
	require.Positive(t, gathered)
}

// apart checks that what is live at once has places of its own.
func apart(t *testing.T, slots []*plan.Slot, size int) {
	for i, a := range slots {
		require.LessOrEqual(t, a.Offset+a.Bytes(), size)
		for _, b := range slots[i+1:] {
			require.True(t, a.Last < b.First || b.Last < a.First || a.Offset+a.Bytes() <= b.Offset || b.Offset+b.Bytes() <= a.Offset, "%s and %s share memory", a.FQN, b.FQN)
		}
	}
}

// A step does the same work: only casts are done again, each where its gather is.
func TestWindowsOnlyRepeatCasts(t *testing.T) {
	before, after := fsdpProgram(t, "off", 0), windowed(t, "off", 0)
	count := func(p *plan.Program) map[string]int {
		n := map[string]int{}
		for i := range p.Steps {
			n[p.Steps[i].String()]++
		}
		return n
	}
	was, is := count(before), count(after)
	require.Equal(t, len(was), len(is))
	more := 0
	for step, n := range was {
		require.GreaterOrEqual(t, is[step], n, step)
		more += is[step] - n
	}
	require.Positive(t, more)
	require.Equal(t, len(before.Steps)+more, len(after.Steps))
	for i := range after.Steps {
		s := &after.Steps[i]
		require.False(t, s.Prologue && s.Node.Op.Name == "cast" && s.Out[0].Bytes()%16 == 0, s)
	}
}

// Shards of different lengths are gathered as they were.
func TestUnevenShardsStayOut(t *testing.T) {
	p := shardedProgram(t, "off", 0, 3)
	p.Overlap()
	steps := len(p.Steps)
	p.PlaceWindows()
	require.GreaterOrEqual(t, len(p.Steps), steps)
	for i := range p.Steps {
		s := &p.Steps[i]
		if !s.Aside || s.Node.Op.Name != "all_gather" {
			continue
		}
		for k, in := range s.In {
			rows := s.Node.In[k].Shape[0]
			even := rows%3 == 0 && in.Bytes()%16 == 0
			require.Equal(t, even, s.Out[k].Class == plan.Window, "%s: %d rows", s, rows)
		}
	}
	apart(t, p.Slots, p.ArenaBytes)
}

// A trace of a run tells of the windows too: each value within a segment, none over another.
func TestWindowsAreTraced(t *testing.T) {
	p := windowed(t, "off", 0)
	var segments, live []alloc.Event
	windows, waits := 0, 0
	values := plan.Follow(p, plan.NewPlaced(p, func(e alloc.Event) {
		over := func(o alloc.Event) bool { return e.Addr < o.Addr+uint64(o.Size) && o.Addr < e.Addr+uint64(e.Size) }
		switch e.Action {
		case alloc.SegmentAlloc:
			require.False(t, slices.ContainsFunc(segments, over), e)
			segments = append(segments, e)
			if e.Owner == "windows" {
				windows = len(segments) - 1
			}
		case alloc.Alloc:
			require.True(t, slices.ContainsFunc(segments, over))
			require.False(t, slices.ContainsFunc(live, over), e)
			live = append(live, e)
		case alloc.FreeCompleted:
			at := slices.IndexFunc(live, func(o alloc.Event) bool { return o.Addr == e.Addr && o.Size == e.Size })
			require.GreaterOrEqual(t, at, 0)
			live = slices.Delete(live, at, at+1)
		case alloc.Use:
			require.True(t, slices.ContainsFunc(live, over))
		case alloc.Wait:
			waits++
		}
	}), false)
	require.Positive(t, windows)
	fixed := len(live)
	for i := range p.Steps {
		_, err := values.Begin(i)
		require.NoError(t, err)
		require.NoError(t, values.End(i))
	}
	require.Len(t, live, fixed)
	require.Greater(t, waits, 4)
}
