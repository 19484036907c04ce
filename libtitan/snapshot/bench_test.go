package snapshot

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkPickle reads and analyses a trace of events. Two million are to take less than 5 s.
func BenchmarkPickle(b *testing.B) {
	var events []any
	for i := range 50_000 {
		for _, action := range []string{"alloc", "free_requested", "free_completed"} {
			events = append(events, dict{"action": action, "addr": int64(i%1000+1) << 22, "size": 4 << 20, "stream": 0, "time_us": int64(1) << 50, "frames": []any{},
				"compile_context": "N/A", "user_metadata": ""})
		}
	}
	data := asPickle(b, 4, trace(events...))
	b.ReportAllocs()
	for b.Loop() {
		s, err := Parse(data)
		require.NoError(b, err)
		Analyze(s, &s.Devices[0])
	}
	b.ReportMetric(float64(len(events)*b.N)/b.Elapsed().Seconds(), "events/s")
}
