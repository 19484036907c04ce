package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Whatever --times is given, it is refused in one line or is times of a million ticks at most.
func FuzzTimes(f *testing.F) {
	for _, text := range []string{"", "F=2,B=4,I=2,W=2,send=1", "F=2,B=4;3:F=5,B=9", "3:F=1", "F=1;;", "F=-1", "F=99999999999999999999", "1048576:F=1", "x=1", ":", ";0:"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		times, err := parseTimes(text)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		for _, stage := range []int{0, 1, 3, 1 << 20} {
			of := times.of(stage)
			for _, n := range []int{of.F, of.B, of.I, of.W, of.Send} {
				require.GreaterOrEqual(t, n, 0)
				require.Less(t, n, 1<<20)
			}
		}
	})
}
