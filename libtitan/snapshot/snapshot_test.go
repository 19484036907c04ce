package snapshot

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
)

// truth is what torch.cuda.memory_stats said when a snapshot was taken.
type truth struct {
	File      string
	Policy    string
	Peak, End alloc.Counts
	Deferred  int   `json:"deferred_frees"`
	Split     int64 `json:"inactive_split_bytes"`
}

func truths(t *testing.T) (list []truth) {
	text, err := os.ReadFile("testdata/torch/truth.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &list))
	require.Len(t, list, 20)
	return list
}

func load(t *testing.T, file string) (*Snapshot, *Device) {
	s, err := ReadFile(filepath.Join("testdata", "torch", file))
	require.NoError(t, err)
	d, err := s.Device(-1)
	require.NoError(t, err)
	return s, d
}

// pending fills in what memory_stats leaves to subtract.
func (c truth) pending() alloc.Counts {
	c.End.Pending = c.End.Active - c.End.Allocated
	return c.End
}

func TestPyTorchsCounters(t *testing.T) {
	for _, want := range truths(t) {
		t.Run(want.File, func(t *testing.T) {
			s, d := load(t, want.File)
			r := Analyze(s, d)
			pending := r.Peak.Pending
			r.Peak.Pending = 0
			require.Equal(t, want.Peak, r.Peak)
			require.Equal(t, want.pending(), r.End)
			require.Equal(t, want.Deferred, r.Deferred.Count)
			require.Equal(t, want.Split, r.Fragments["end"].Stuck)
			require.Equal(t, r.Peak.Allocated, r.Counterfactual)
			require.LessOrEqual(t, r.AtPeakActive.Pending, pending)
			require.Equal(t, want.Peak.Active, r.AtPeakActive.Active)
			t.Log(r.History, r.Notes, pending, r.AtPeakActive)
		})
	}
}

// Under its own policy and settings a replay takes the segments that PyTorch took.
func TestReplayIsPyTorchs(t *testing.T) {
	for _, want := range truths(t) {
		t.Run(want.File, func(t *testing.T) {
			s, d := load(t, want.File)
			o, err := Replay{Policy: Recorded, Config: s.Config, AsRecorded: true}.Run(s, d)
			require.NoError(t, err)
			o.Peak.Pending = 0
			require.Equal(t, want.Peak, o.Peak)
			require.Equal(t, want.pending(), o.Now)
		})
	}
}

// What one policy costs over the other stands in the trace of the costly one: the bytes pending at peak active are the
// difference of the peaks, and its replay under the cheap policy reserves what the cheap one did.
func TestStackingExplainsTheDifference(t *testing.T) {
	for _, when := range []string{"mid", "end"} {
		s, d := load(t, "emu_record_stream."+when+".pickle")
		stacked := Analyze(s, d)
		other, od := load(t, "emu_hold_refs."+when+".pickle")
		held := Analyze(other, od)
		require.InEpsilon(t, stacked.Peak.Active-held.Peak.Active, stacked.AtPeakActive.Pending, 0.01)
		require.Equal(t, held.Peak.Active, stacked.Counterfactual)
		o, err := Replay{Policy: Hold, Config: s.Config}.Run(s, d)
		require.NoError(t, err)
		require.Equal(t, held.Peak, o.Peak)
	}
}

// The gathered buffer is who holds the most of what is stacked.
func TestHolders(t *testing.T) {
	s, d := load(t, "emu_record_stream.mid.pickle")
	r := Analyze(s, d)
	require.Contains(t, r.Holders[0].Owner, "loop_emulated (make_memory_snapshots.py:259)")
	require.Equal(t, 24, r.Holders[0].Depth)
	var active, pending int64
	for _, h := range r.Holders {
		active, pending = active+h.Active, pending+h.Pending
	}
	require.Equal(t, r.AtPeakActive.Active, active)
	require.Equal(t, r.AtPeakActive.Pending, pending)
	for i, p := range r.Timeline.Points {
		sum := r.Timeline.Others.Active[i]
		for _, y := range r.Timeline.Layers {
			sum += y.Active[i]
		}
		require.Equal(t, p.At.Active, sum, "point %d", i)
	}
}

// A timeline stays small and keeps the peaks, however long the trace.
func TestTimelineIsBounded(t *testing.T) {
	s := &Snapshot{Owners: make([]Owner, 1), Labels: []string{""}, Devices: make([]Device, 1)}
	d := &s.Devices[0]
	for i := range 50_000 {
		d.Trace = append(d.Trace, Event{Action: alloc.Alloc, Addr: uint64(i+1) << 20, Size: 4096}, Event{Action: alloc.FreeRequested, Addr: uint64(i+1) << 20})
		if i%7 != 0 {
			d.Trace = append(d.Trace, Event{Action: alloc.FreeCompleted, Addr: uint64(i+1) << 20})
		}
	}
	r := Analyze(s, d)
	require.LessOrEqual(t, len(r.Timeline.Points), maxPoints)
	require.Len(t, r.Timeline.Others.Active, len(r.Timeline.Points))
	var top int64
	for _, p := range r.Timeline.Points {
		top = max(top, p.At.Active)
	}
	require.Equal(t, r.Peak.Active, top)
}
