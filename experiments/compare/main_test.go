package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
)

// A run of two ranks and four steps, of which the last two are timed.
func TestCompare(t *testing.T) {
	plot := filepath.Join(t.TempDir(), "plot.svg")
	var out bytes.Buffer
	require.NoError(t, compare([]string{"testdata/tp2.json", "testdata/tp2.json"}, plot, &out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 4)
	require.Equal(t, "| tp2 | 6.67087 | 6.28268 | 463.3 | 548.1 | 419.1 | +11% | 78.1 | 116.4 |", lines[2])
	require.Equal(t, lines[2], lines[3])
	text, err := os.ReadFile(plot)
	require.NoError(t, err)
	lineCount := 0
	for d := xml.NewDecoder(bytes.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lineCount++
		}
	}
	require.Equal(t, 2, lineCount)
}

func TestCompareRefuses(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o666))
		return path
	}
	whole, err := os.ReadFile("testdata/tp2.json")
	require.NoError(t, err)
	steps, err := os.ReadFile("testdata/tp2.jsonl")
	require.NoError(t, err)
	bare, short, odd := put("bare.json", `{"schema": "titan.manifest/v1"}`), put("short.json", string(whole)), put("odd.json", string(whole))
	put("short.jsonl", strings.Join(strings.SplitAfter(string(steps), "\n")[:2], ""))
	put("odd.jsonl", "{\n")
	for _, c := range []struct {
		paths []string
		want  string
		code  exit.Kind
	}{
		{nil, "no runs: name their manifests, RUN.json beside RUN.jsonl", exit.Usage},
		{[]string{filepath.Join(dir, "none.json")}, "no such file or directory", exit.Input},
		{[]string{bare}, "bare.json: no estimate: fill it with meshplan estimate", exit.Input},
		{[]string{short}, "short.jsonl: 2 steps: want more than 2", exit.Input},
		{[]string{odd}, "odd.jsonl: line 1: ", exit.Input},
	} {
		err := compare(c.paths, "", io.Discard)
		require.ErrorContains(t, err, c.want)
		require.Equal(t, int(c.code), exit.Code(err), c.want)
	}
}
