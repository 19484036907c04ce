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
