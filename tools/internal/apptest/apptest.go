// Package apptest tests tools as their users run them: as programs on PATH, joined by pipes. A tool's test file
// needs four lines:
//
//	func TestMain(m *testing.M)      { apptest.Main(m, "meshplan", "pp-split") } // the tools it calls
//	func TestScripts(t *testing.T)   { apptest.Scripts(t) }                      // testdata/script/*.txtar
//	func TestReadme(t *testing.T)    { apptest.Readme(t) }                       // the sh blocks of README.md
//	func TestExamples(t *testing.T)  { apptest.Examples(t, tool()) }             // the examples of --help
//
// A main package cannot be imported, and a pipe needs processes, so Main builds the tools with `go build`, once
// per test binary. Scripts are testscript's; the command `code N TOOL ARGS...` runs a tool that must exit with N,
// and `go test -u` rewrites the golden files that `cmp` finds different.
package apptest

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"titan/tools/internal/app"
)

var update = flag.Bool("u", false, "rewrite the golden files of scripts")

// Main builds tools, puts them first on PATH, runs m's tests and ends the process.
func Main(m *testing.M, tools ...string) {
	code, err := run(m, tools)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, tools []string) (code int, err error) {
	dir, err := os.MkdirTemp("", "tools")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	args := []string{"build", "-o", dir + string(filepath.Separator)}
	for _, tool := range tools {
		args = append(args, "titan/tools/"+tool)
	}
	if out, err := exec.Command("go", args...).CombinedOutput(); err != nil {
		return 0, fmt.Errorf("go build: %w\n%s", err, out)
	}
	if err := os.Setenv("PATH", dir+string(filepath.ListSeparator)+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

// Scripts runs testdata/script/*.txtar.
func Scripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:           filepath.Join("testdata", "script"),
		UpdateScripts: *update,
		Cmds:          map[string]func(*testscript.TestScript, bool, []string){"code": code},
	})
}

// code is the script command `code N TOOL ARGS...`.
func code(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: code N TOOL ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exited *exec.ExitError
		if !errors.As(err, &exited) {
			ts.Fatalf("%s: %v", args[1], err)
		}
		got = exited.ExitCode()
	}
	if got != want {
		ts.Fatalf("%s exits with %d, want %d", args[1], got, want)
	}
}

var shBlock = regexp.MustCompile("(?s)```sh\n(.*?)```")

// Readme runs the sh blocks of README.md one after the other, in one empty folder.
func Readme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := shBlock.FindAllSubmatch(text, -1)
	if len(blocks) == 0 {
		t.Fatal("README.md has no sh block")
	}
	dir := t.TempDir()
	for _, block := range blocks {
		sh(t, dir, string(block[1]))
	}
}

// Examples runs the example of tool's --help in an empty folder, and there those of its verbs, which may use what it left;
// not those of the verbs in but.
func Examples(t *testing.T, tool app.Tool, but ...string) {
	dir := t.TempDir()
	sh(t, dir, tool.Example)
	for _, v := range tool.Verbs {
		if !slices.Contains(but, v.Name) {
			sh(t, dir, v.Example)
		}
	}
}

// sh runs script in dir: as a person who types it sees it, a failure anywhere in a pipe is one.
func sh(t *testing.T, dir, script string) {
	t.Helper()
	shell := exec.CommandContext(t.Context(), "bash", "-e", "-o", "pipefail", "-c", script)
	shell.Dir = dir
	if out, err := shell.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", script, err, out)
	}
}
