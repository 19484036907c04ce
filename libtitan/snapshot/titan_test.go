package snapshot

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
)

// Two steps of eight layers of llama3-8b on two H200, in titan-run's allocator: what it counted itself under record-stream,
// and what it reserved in another run, under hold.
var measured = []struct {
	file         string
	peak         alloc.Counts // pending is not told by a step's end, but is the same
	heldReserved int64
}{
	{"tp2_record_stream.trace", alloc.Counts{Requested: 33211245056, Allocated: 30963950080, Active: 33212293632, Reserved: 33426505728, Pending: 6610976768}, 31176261632},
}

// A trace tells what the allocator counted; played again it takes the same segments; and played under hold it says what a run
// under hold reserves.
func TestTracesOfTwoGPUs(t *testing.T) {
	for _, m := range measured {
		t.Run(m.file, func(t *testing.T) {
			s, err := ReadFile(filepath.Join("testdata", "titan", m.file))
			require.NoError(t, err)
			s.MergeLayers()
			d := &s.Devices[0]
			r := Analyze(s, d)
			require.Equal(t, Full, r.History)
			require.Empty(t, r.Notes)
			require.Equal(t, m.peak, r.Peak)
			o, err := Replay{Policy: RecordStream, Config: s.Config, AsRecorded: true}.Run(s, d)
			require.NoError(t, err)
			require.Equal(t, m.peak, o.Peak)
			o, err = Replay{Policy: Hold, Config: s.Config}.Run(s, d)
			require.NoError(t, err)
			require.Equal(t, m.heldReserved, o.Peak.Reserved)
			require.Zero(t, o.Peak.Pending)
		})
	}
}

// Owners that differ in the number of their layer alone become one.
func TestMergeLayers(t *testing.T) {
	s, err := ReadFile(filepath.Join("testdata", "titan", "tp2_record_stream.trace"))
	require.NoError(t, err)
	before := Analyze(s, &s.Devices[0])
	s.MergeLayers()
	after := Analyze(s, &s.Devices[0])
	require.Less(t, len(after.Holders), len(before.Holders)/4)
	require.Equal(t, before.Peak, after.Peak)
	for _, h := range after.Holders {
		if h.Owner == "reduce_scatter < layers.* < forward" {
			require.Equal(t, "communication", h.Category)
			require.EqualValues(t, 512<<20, h.Pending)
			require.Equal(t, 16, h.PendingBlocks)
			return
		}
	}
	require.Fail(t, "who stacks is not among the holders")
}
