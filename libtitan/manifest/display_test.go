package manifest

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSizesForPeople(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", -1536: "-1.5 KiB", 146591680 << 10: "139.8 GiB", 31878 << 20: "31.1 GiB", 1 << 60: "1048576.0 TiB",
	} {
		require.Equal(t, want, HumanBytes(n))
	}
	require.Equal(t, []string{"0 ranks", "1 rank", "2 ranks", "3 microbatches"},
		[]string{Counted(0, "rank"), Counted(1, "rank"), Counted(2, "rank"), Counted(3, "microbatch")})
}

func TestNearestOfSeveralAsClose(t *testing.T) {
	known := []string{"llama3-1b", "llama3-3b", "llama3-8b", "llama3-70b"}
	require.Equal(t, "llama3-8b", Nearest("llama3-9b", known))
	require.Equal(t, "abcd", Nearest("abce", []string{"bbce", "abcd"}))
	require.Empty(t, Nearest("gpt", known))
}
