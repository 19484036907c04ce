package main

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A person tries README's rows and the examples of --help in one folder, in whatever order: none may take another's.
func TestExamplesTogether(t *testing.T) {
	readme, helps := readmeRows(t), [][]string{
		helpExamples(t, "seedinit"),
		helpExamples(t, "titan-run", "eval"),
		helpExamples(t, "ckpt-shard", "ls", "show", "verify", "edit", "reshard", "convert", "extract", "rename", "diff"),
		helpExamples(t, "memprof", "snapshot", "replay"),
		helpExamples(t, "pp-split"),
		helpExamples(t, "meshplan", "check"),
	}
	for name, order := range map[string][]string{
		"README first": slices.Concat(readme, slices.Concat(helps...)),
		"README last":  slices.Concat(slices.Concat(reversed(helps)...), readme),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, script := range order {
				shell := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
				shell.Dir = dir
				out, err := shell.CombinedOutput()
				require.NoError(t, err, "%s\n%s", script, out)
				require.NotContains(t, string(out), "nothing to do", script)
			}
		})
	}
}

func reversed(helps [][]string) [][]string {
	out := slices.Clone(helps)
	slices.Reverse(out)
	return out
}

var (
	readmeRow = regexp.MustCompile(`(?m)^\| \[[a-z-]+\]\(tools/.*$`)
	command   = regexp.MustCompile("`([^`]*)`")
)

// readmeRows are the commands of the table in the project's README, but for one that needs a file of PyTorch's.
func readmeRows(t *testing.T) (commands []string) {
	text, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	for _, row := range readmeRow.FindAllString(string(text), -1) {
		for _, c := range command.FindAllStringSubmatch(row, -1) {
			if !strings.Contains(c[1], "FILE") {
				commands = append(commands, strings.ReplaceAll(c[1], `\|`, "|"))
			}
		}
	}
	require.Len(t, commands, 7)
	return commands
}

// helpExamples are the examples that a tool and some of its verbs print.
func helpExamples(t *testing.T, tool string, verbs ...string) (examples []string) {
	for _, verb := range slices.Concat([]string{""}, verbs) {
		out, err := exec.CommandContext(t.Context(), tool, append(strings.Fields(verb), "--help")...).Output()
		require.NoError(t, err)
		_, after, found := strings.Cut(string(out), "Example:\n\n")
		require.True(t, found, "%s %s", tool, verb)
		example, _, _ := strings.Cut(after, "\n\n")
		examples = append(examples, example)
	}
	return examples
}
