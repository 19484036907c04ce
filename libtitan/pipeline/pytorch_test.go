package pipeline

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func text(t *testing.T, ranks [][]Action) string {
	var out bytes.Buffer
	require.NoError(t, WriteCSV(&out, ranks))
	return out.String()
}

// golden splits the name of a file of testdata: schedule, pp, stages a rank, microbatches.
func golden(t *testing.T, path string) *Schedule {
	parts := strings.Split(strings.TrimSuffix(strings.TrimSuffix(filepath.Base(path), ".csv"), ".lowered"), "-")
	require.Len(t, parts, 4)
	return build(t, parts)
}

func build(t *testing.T, parts []string) *Schedule {
	var n [3]int
	for i := range n {
		var err error
		n[i], err = strconv.Atoi(parts[i+1])
		require.NoError(t, err)
	}
	s, err := Build(parts[0], n[0], n[1], n[2])
	require.NoError(t, err)
	return s
}

// Build and Lower write what PyTorch 2.14 writes for small schedules, to the letter, and ReadCSV reads it.
func TestPyTorchGoldens(t *testing.T) {
	paths, err := filepath.Glob("testdata/*-*.csv")
	require.NoError(t, err)
	require.Len(t, paths, 12)
	for _, path := range paths {
		want, err := os.ReadFile(path)
		require.NoError(t, err)
		s := golden(t, path)
		ranks := s.Ranks
		if strings.Contains(path, ".lowered") {
			ranks = s.Lower()
		}
		require.Equal(t, string(want), text(t, ranks), path)
		read, err := ReadCSV(bytes.NewReader(want))
		require.NoError(t, err, path)
		require.Equal(t, s.Ranks, read.Ranks, path)
		require.Equal(t, s.StageRank, read.StageRank, path)
	}
}

// Every schedule of up to 8 ranks and 16 microbatches is PyTorch 2.14's, by checksum, and so is its lowered form,
// made by PyTorch's _add_reduce_grad and _add_send_recv. 1F1B, whose lists PyTorch does not run, and numbers
// wrongly on the last rank, is not among them.
func TestPyTorchChecksums(t *testing.T) {
	file, err := os.Open("testdata/pytorch.csv")
	require.NoError(t, err)
	defer file.Close()
	lines, err := csv.NewReader(file).ReadAll()
	require.NoError(t, err)
	require.Len(t, lines, 1001)
	for _, line := range lines[1:] {
		s := build(t, line)
		for i, ranks := range [][][]Action{s.Ranks, s.Lower()} {
			sum := fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text(t, ranks))))
			require.Equal(t, line[4+i], sum, "%s, form %d", line, i)
		}
	}
}
