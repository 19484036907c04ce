package alloc

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const mib = 1 << 20

func open(t require.TestingT, d Device, c Config) *Allocator {
	a, err := New(d, Options{Config: c, Now: func() int64 { return 0 }})
	require.NoError(t, err)
	return a
}

func malloc(t require.TestingT, a *Allocator, bytes int64, s Stream) *Block {
	b, err := a.Malloc(Request{Bytes: bytes, Stream: s})
	require.NoError(t, err)
	return b
}

// What a user who compares requests with counters sees: the difference is rounding, and a rest too small to split.
func TestSizes(t *testing.T) {
	requests := []int64{1, mib, mib + 1, 10 * mib, 11 * mib}
	want := []Counts{{Allocated: 512, Reserved: 2 * mib}, {Allocated: mib, Reserved: 2 * mib}, {Allocated: 1049088, Reserved: 20 * mib},
		{Allocated: 10 * mib, Reserved: 10 * mib}, {Allocated: 12582912, Reserved: 12 * mib}}
	together := open(t, &Virtual{}, Config{})
	for i, r := range requests {
		want[i].Requested, want[i].Active = r, want[i].Allocated
		a := open(t, &Virtual{}, Config{})
		malloc(t, a, r, 0)
		require.Equal(t, want[i], a.Stats().Now, "%d bytes", r)
		malloc(t, together, r, 0)
	}
	all := Counts{Requested: 24117250, Allocated: 25166848, Active: 25166848, Reserved: 35651584}
	require.Equal(t, Meter{all, all, all}, together.Stats().Meter)
}

// Four gathered buffers, each freed while another stream has still to read it.
func TestStacking(t *testing.T) {
	const comm, compute = 7, 0
	run := func(p Policy, finish bool) Meter {
		d := &Virtual{}
		a := open(t, d, Config{Policy: p})
		for range 4 {
			b := malloc(t, a, 8*mib, comm)
			a.Use(b, compute)
			require.NoError(t, a.Free(b))
			if finish {
				d.Finish(compute, 1)
				a.Wait(comm, compute, 0)
			}
		}
		d.Finish(compute, 4)
		require.NoError(t, a.EmptyCache())
		return a.Stats().Meter
	}
	behind := run(RecordStream, false)
	require.Equal(t, Counts{32 * mib, 8 * mib, 32 * mib, 40 * mib, 32 * mib}, behind.Peak)
	require.Equal(t, Counts{32 * mib, 8 * mib, 32 * mib, 40 * mib, 24 * mib}, behind.AtPeakActive)
	require.Equal(t, Counts{}, behind.Now)
	require.Equal(t, Counts{8 * mib, 8 * mib, 8 * mib, 20 * mib, 8 * mib}, run(RecordStream, true).Peak)
	require.Equal(t, Counts{8 * mib, 8 * mib, 8 * mib, 20 * mib, 0}, run(Hold, true).Peak)
	require.Equal(t, Counts{8 * mib, 8 * mib, 8 * mib, 20 * mib, 0}, run(SameStream, false).Peak)

	// Never waited for: under Hold the buffers stay allocated, which a report must not call pending.
	require.Equal(t, Counts{32 * mib, 32 * mib, 32 * mib, 40 * mib, 0}, run(Hold, false).Peak)
}

// A wait that does not reach the newest use keeps what that needs, also of a block that earlier ones need too.
func TestWaitForSome(t *testing.T) {
	a := open(t, &Virtual{}, Config{})
	var blocks []*Block
	for range 3 {
		b := malloc(t, a, 2*mib, 0)
		blocks = append(blocks, b)
		a.Use(b, 1)
	}
	a.Use(blocks[0], 1) // again
	for _, b := range blocks {
		require.NoError(t, a.Free(b))
	}
	held := func() int64 { return a.Stats().Now.Allocated / (2 * mib) }
	a.Wait(0, 1, 4)
	require.EqualValues(t, 3, held())
	a.Wait(0, 1, 2)
	require.EqualValues(t, 2, held(), "the second went; the first is used again")
	a.Wait(0, 1, 1)
	require.EqualValues(t, 1, held())
	a.Wait(0, 1, 0)
	require.Zero(t, held())
}

func TestRound(t *testing.T) {
	for _, c := range []struct {
		divisions   int
		bytes, want int64
	}{
		{0, 1, 512}, {0, 512, 512}, {0, 513, 1024}, {0, 1200, 1536},
		{4, 1200, 1536}, {4, 1600, 2048}, {4, 2049, 2560}, {4, 8192, 8192}, {4, 9000, 10240}, {2, 1025, 1536},
	} {
		config := Config{}
		for i := range config.Divisions {
			config.Divisions[i] = c.divisions
		}
		require.Equal(t, c.want, config.Round(c.bytes), "%d bytes in %d divisions", c.bytes, c.divisions)
	}
}

func TestPoolsAreByStreamAndSize(t *testing.T) {
	a := open(t, &Virtual{}, Config{})
	b := malloc(t, a, 4*mib, 1)
	addr := b.Addr()
	require.NoError(t, a.Free(b))
	require.NotEqual(t, addr, malloc(t, a, 4*mib, 2).Addr(), "another stream's")
	require.NotEqual(t, addr, malloc(t, a, 512, 1).Addr(), "a small request")
	require.Equal(t, addr, malloc(t, a, 3*mib, 1).Addr())
}

func TestOutOfMemory(t *testing.T) {
	d := &Virtual{Capacity: 60 * mib}
	a := open(t, d, Config{Policy: RecordStream})
	b := malloc(t, a, 30*mib, 1)
	a.Use(b, 2)
	require.NoError(t, a.Free(b))
	malloc(t, a, 50*mib, 3) // waits for stream 2, gives the 30 MiB back
	require.EqualValues(t, 1, a.Stats().Retries)
	_, err := a.Malloc(Request{Bytes: 20 * mib})
	var full *OutOfMemory
	require.ErrorAs(t, err, &full)
	require.ErrorIs(t, err, ErrFull)
	require.EqualValues(t, 50*mib, full.Reserved)
	require.EqualValues(t, 1, a.Stats().OOMs)
	_, err = a.Malloc(Request{Bytes: 0})
	require.Error(t, err)
}

func TestMaxSplitSize(t *testing.T) {
	a := open(t, &Virtual{}, Config{MaxSplitSize: 30 * mib})
	b := malloc(t, a, 100*mib, 0)
	require.NoError(t, a.Free(b))
	small := malloc(t, a, 12*mib, 0)
	require.NotEqual(t, b.Addr(), small.Addr(), "a block too large to split stays whole")
	require.NotEqual(t, b.Addr(), malloc(t, a, 70*mib, 0).Addr(), "20 MiB of slack is too much")
	require.Equal(t, int64(100*mib), malloc(t, a, 90*mib, 0).size)
}

func TestFreedTwice(t *testing.T) {
	for _, p := range []Policy{Hold, RecordStream, SameStream} {
		a := open(t, &Virtual{}, Config{Policy: p})
		b := malloc(t, a, 5, 0)
		a.Use(b, 1)
		require.NoError(t, a.Free(b))
		require.ErrorContains(t, a.Free(b), "freed twice")
		require.Error(t, a.Complete(b))
	}
}

func TestExpandable(t *testing.T) {
	a := open(t, &Virtual{}, Config{Expandable: true})
	x := malloc(t, a, 15*mib, 0)
	y := malloc(t, a, 15*mib, 0)
	require.Equal(t, x.Addr()+15*mib, y.Addr(), "segments grow in place")
	require.EqualValues(t, 40*mib, a.Stats().Now.Reserved)
	require.NoError(t, a.Free(x))
	require.NoError(t, a.EmptyCache())
	require.EqualValues(t, 40*mib, a.Stats().Now.Reserved, "y lies in both pages")
	require.NoError(t, a.Free(y))
	require.NoError(t, a.EmptyCache())
	require.Zero(t, a.Stats().Now)
	require.Equal(t, x.Addr(), malloc(t, a, 90*mib, 0).Addr())
	require.EqualValues(t, 100*mib, a.Stats().Now.Reserved)
}

// Whatever is asked for, blocks tile segments, free neighbours are one, the counters are the sums of what is there,
// and the trace tells the same story.
func TestAllocatorHolds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{
			Policy:       Policy(rapid.IntRange(0, 2).Draw(t, "policy")),
			Expandable:   rapid.Bool().Draw(t, "expandable"),
			MaxSplitSize: rapid.SampledFrom([]int64{0, 25 * mib}).Draw(t, "max split"),
		}
		d := &Virtual{Capacity: rapid.SampledFrom([]int64{0, 200 * mib}).Draw(t, "capacity"), Space: 400 * mib}
		told := newTold()
		a, err := New(d, Options{Config: c, Trace: told.event})
		require.NoError(t, err)
		var live []*Block
		sizes := rapid.OneOf(rapid.Int64Range(1, 4096), rapid.Int64Range(1, 3*mib), rapid.Int64Range(mib, 40*mib))
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch do := rapid.IntRange(0, 9).Draw(t, "do"); {
			case do < 5 || len(live) == 0:
				if b, err := a.Malloc(Request{Bytes: sizes.Draw(t, "bytes"), Stream: Stream(rapid.IntRange(0, 1).Draw(t, "stream"))}); err == nil {
					live = append(live, b)
				}
			case do < 8:
				i := rapid.IntRange(0, len(live)-1).Draw(t, "which")
				if rapid.Bool().Draw(t, "shared") {
					a.Use(live[i], 2)
				}
				require.NoError(t, a.Free(live[i]))
				live = append(live[:i], live[i+1:]...)
			case do == 8:
				d.Finish(2, 1)
				a.Wait(Stream(rapid.IntRange(0, 1).Draw(t, "waiter")), 2, 0)
			default:
				require.NoError(t, a.EmptyCache())
			}
			check(t, a, told)
		}
	})
}

func check(t *rapid.T, a *Allocator, told *told) {
	var sum Counts
	end := uint64(0)
	for _, s := range a.Segments() {
		require.GreaterOrEqual(t, s.Addr, end)
		at, free := s.Addr, false
		for _, b := range s.Blocks {
			require.Equal(t, at, b.Addr)
			require.False(t, free && b.State == Inactive, "free neighbours at %#x", b.Addr)
			at, free = at+uint64(b.Size), b.State == Inactive
			switch b.State {
			case Active:
				sum = sum.plus(Taken(b.Requested, b.Size))
			case PendingFree:
				sum = sum.plus(Counts{Requested: b.Requested, Active: b.Size, Pending: b.Size})
			}
		}
		end = s.Addr + uint64(s.Size)
		require.Equal(t, end, at)
		sum.Reserved += s.Size
	}
	st := a.Stats()
	require.Equal(t, sum, st.Now)
	require.Equal(t, st.Now.Active-st.Now.Allocated, st.Now.Pending)
	require.Equal(t, told.requested, sum.Requested)
	require.Equal(t, told.reserved, sum.Reserved)
	require.Len(t, told.blocks, told.count)
}

// told is what the trace says.
type told struct {
	blocks              map[uint64]int64
	count               int
	requested, reserved int64
}

func newTold() *told { return &told{blocks: map[uint64]int64{}} }

func (l *told) event(e Event) {
	switch e.Action {
	case Alloc:
		l.blocks[e.Addr] = e.Size
		l.count++
		l.requested += e.Size
	case FreeCompleted:
		delete(l.blocks, e.Addr)
		l.count--
		l.requested -= e.Size
	case SegmentAlloc, SegmentMap:
		l.reserved += e.Size
	case SegmentFree, SegmentUnmap:
		l.reserved -= e.Size
	}
}

// An allocator that adopts another's segments goes on as the other would.
func TestAdopt(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := Config{Expandable: rapid.Bool().Draw(t, "expandable")}
		first := open(t, &Virtual{Space: 4 << 30}, c)
		sizes := rapid.OneOf(rapid.Int64Range(1, 2*mib), rapid.Int64Range(mib, 30*mib))
		var live []*Block
		for i := range rapid.IntRange(1, 20).Draw(t, "steps") {
			live = append(live, malloc(t, first, sizes.Draw(t, "bytes"), Stream(i%2)))
			if rapid.Bool().Draw(t, "free") {
				require.NoError(t, first.Free(live[len(live)/2]))
				live = append(live[:len(live)/2], live[len(live)/2+1:]...)
			}
		}
		second := open(t, &Virtual{Space: 4 << 30}, c)
		blocks, err := second.Adopt(first.Segments())
		require.NoError(t, err)
		require.Len(t, blocks, len(live))
		require.Equal(t, first.Segments(), second.Segments())
		require.Equal(t, first.Stats().Now, second.Stats().Now)
		for _, b := range live {
			require.NoError(t, first.Free(b))
			require.NoError(t, second.Free(blocks[b.Addr()]))
		}
		for range 10 {
			bytes := sizes.Draw(t, "more")
			malloc(t, first, bytes, 0)
			malloc(t, second, bytes, 0)
			require.Equal(t, first.Stats().Now, second.Stats().Now)
		}
	})
}

func TestAdoptRefuses(t *testing.T) {
	for _, blocks := range [][]Piece{nil, {{Addr: 0, Size: 1024}}, {{Addr: 0, Size: 256}, {Addr: 300, Size: 212}}, {{Addr: 0, Size: 0}}, {{Addr: 0, Size: 256}}} {
		_, err := open(t, &Virtual{}, Config{}).Adopt([]Segment{{Size: 512, Blocks: blocks}})
		require.Error(t, err)
	}
}
