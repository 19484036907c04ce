package train

import (
	"bytes"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A process named like the end of its own line does not mislead.
func TestStartedAt(t *testing.T) {
	stat := "4221 (a) b 1 (c)) S 1 4221 4221 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 9 0 12345 1000 100 18446744073709551615"
	require.Equal(t, 123450*time.Millisecond, startedAt(stat))
	require.Zero(t, startedAt("4221 (short) S 1"))
	require.Zero(t, startedAt(""))
}

func TestProcessAge(t *testing.T) {
	age := processAge()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		require.Zero(t, age)
		return
	}
	require.Less(t, age, time.Hour)
	time.Sleep(30 * time.Millisecond)
	require.GreaterOrEqual(t, processAge()-age, 20*time.Millisecond)
}

// Parts follow each other: the last total is the sum of all.
func TestStartup(t *testing.T) {
	var out bytes.Buffer
	s := newStartup(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
	began := s.began
	s.done("one part")
	s.done("another")
	require.Equal(t, began, s.began)
	require.Regexp(t, `(?s)start: +\d+ ms  one part, \d+ ms since the process began.*start: +\d+ ms  another, `, out.String())
}
