package libtitan_test

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// rooms are the packages in rows, the highest first. A package imports rows below its own only.
var rooms = [][]string{
	{"train", "measure"},
	{"parallel", "estimate", "checkpoint", "optim", "data", "snapshot"},
	{"model/llama3", "exec", "comm/local", "comm/mpi", "comm/nccl", "comm/commtest", "tokenizer"},
	{"nn", "pass", "plan", "device/cpu", "device/cuda", "device/nvml"},
	{"op", "alloc", "comm"},
	{"graph", "manifest", "exit"},
	{"placement", "pipeline", "rng", "pickle", "scalar", "arrowfile"},
	{"mesh"},
	{"dtype"},
}

func TestImportsGoDown(t *testing.T) {
	const prefix = "titan/libtitan/"
	row := map[string]int{}
	for i, names := range rooms {
		for _, n := range names {
			row[n] = i
		}
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "./...").Output()
	require.NoError(t, err)
	checked := 0
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		name, ours := strings.CutPrefix(fields[0], prefix)
		if !ours {
			continue
		}
		from, known := row[name]
		require.True(t, known, "package %s has no room: give it one in this table and in docs/design.md", name)
		checked++
		for _, path := range fields[1:] {
			require.False(t, strings.HasPrefix(path, "titan/tools/"), "%s imports %s", name, path)
			if to, ours := strings.CutPrefix(path, prefix); ours {
				require.Greater(t, row[to], from, "%s imports %s, which is not below it", name, to)
			}
		}
	}
	require.Greater(t, checked, 15)
}

// Only tools import train.
func TestOnlyToolsTrain(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}}{{range .Imports}} {{.}}{{end}}`, "titan/...").Output()
	require.NoError(t, err)
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		for _, path := range fields[1:] {
			if path == "titan/libtitan/train" {
				require.True(t, strings.HasPrefix(fields[0], "titan/tools/"), "%s imports train", fields[0])
			}
		}
	}
}
