package nvml

import (
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
)

// With a GPU its memory is read; without one the error says what is missing, and the process lives.
func TestSampleOrSayWhatIsMissing(t *testing.T) {
	l, err := Open()
	if err != nil {
		require.ErrorContains(t, err, "nvml: ")
		require.Equal(t, int(exit.Lost), exit.Code(err))
		return
	}
	defer l.Close()
	gpus, err := l.Sample()
	require.NoError(t, err)
	for _, g := range gpus {
		require.Positive(t, g.TotalBytes)
		require.LessOrEqual(t, g.UsedBytes, g.TotalBytes)
	}
	_, err = l.Find("0000:ff:1f.7")
	require.ErrorContains(t, err, "0000:ff:1f.7")
}
