package train

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/alloc"
	memtrace "titan/libtitan/snapshot"
)

// Where values lie changes no bit: in the planned arena, or in a caching allocator under any policy, whose trace ends with
// what was there before the first step.
func TestGPUStreamPolicies(t *testing.T) {
	needGPU(t)
	job := tinyJob(t, numbers(t))
	job.Training.MixedPrecisionParam = "float32"
	want := onGPU(t, job)
	for _, policy := range alloc.Policies {
		t.Run(policy, func(t *testing.T) {
			var trace bytes.Buffer
			got := stepsWith(t, job, func(o *Options) { o.Device, o.StreamPolicy, o.TraceMemory = "cuda", policy, &trace })
			require.Equal(t, want, got)
			s, err := memtrace.Parse(trace.Bytes())
			require.NoError(t, err)
			r := memtrace.Analyze(s, &s.Devices[0])
			require.Equal(t, memtrace.Full, r.History)
			require.Empty(t, r.Notes)
			require.Greater(t, r.Peak.Active, r.End.Active)
			require.Zero(t, r.End.Pending) // one GPU: nothing moves
		})
	}
}
