package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNumbersAsPeopleWriteThem(t *testing.T) {
	for s, want := range map[string]int64{
		"4096": 4096, "512KiB": 512 << 10, "80GiB": 80 << 30, "80 GiB": 80 << 30, "80gib": 80 << 30, "2g": 2 << 30, "1.5GB": 1_500_000_000, "0.5TiB": 1 << 39,
	} {
		n, err := ParseBytes(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for s, want := range map[string]int64{"64": 64, "1_000_000": 1_000_000, "4k": 4000, "4Ki": 4096, "1.5M": 1_500_000, "-1": -1} {
		n, err := ParseCount(s)
		require.NoError(t, err, s)
		require.Equal(t, want, n, s)
	}
	for s, why := range map[string]string{
		"": "want a size", "80 ": "want a size", "80  GiB": "want a size", " 80GiB": "want a size", "GiB": "want a size", "1e9": "want a size",
		"3parsecs": `unknown suffix "parsecs"`, "-1": "a size is not negative", "0.3": "not a whole number that fits", "99999999TiB": "not a whole number that fits",
	} {
		_, err := ParseBytes(s)
		require.ErrorContains(t, err, why, s)
	}
}
