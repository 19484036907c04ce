package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// fake is a tool with one of everything.
type fake struct {
	tp     int
	memory int64
	lr     float64
	kind   string
	dtype  string
	jobs   int
	every  int
	name   string
	names  []string
	args   []string
	do     func(ctx context.Context, e *Env) error
}

func (f *fake) tool() Tool {
	return Tool{
		Name: "fake", Usage: "do nothing well", About: "It shows how tools behave.", Example: "fake --tp 2 | other",
		Flags: nil, Manifest: true, Run: f.run,
		Verbs: []Verb{
			{Name: "show", Usage: "show one", Args: "DIR [FQN]", Run: f.run},
			{Name: "pack", Usage: "pack many", Args: "FILE...", Run: f.run},
		},
	}
}

func (f *fake) run(ctx context.Context, e *Env) error {
	f.args = e.Args
	if f.do != nil {
		return f.do(ctx, e)
	}
	return nil
}

func (f *fake) exec(in string, args ...string) (code int, out, errs string) {
	t := f.tool()
	f.tp, f.kind = 1, "1F1B"
	t.Flags = append(t.Flags,
		Count(&f.tp, "degree `N`", "tp", "tensor-parallel"), Bytes(&f.memory, "memory", "memory"), Number(&f.lr, "rate", "lr"),
		Natural(&f.jobs, "jobs", "jobs"), AtLeast(&f.every, 1, "every", "every"),
		Choice(&f.kind, []string{"GPipe", "1F1B"}, "schedule", "kind"), DType(&f.dtype, []string{"float32", "bfloat16"}, "type", "dtype"), Text(&f.name, "name", "name"), Texts(&f.names, "names", "many"),
		Model(&f.name, "a name or a `FILE`", "model"), Folder(&f.name, "a `DIR`", "to"), ActivationCheckpoint(&f.name))
	t.Verbs[0].Flags = append(t.Verbs[0].Flags, Count(&f.tp, "degree `N`", "tp", "tensor-parallel"))
	var o, e bytes.Buffer
	code = Run(t, append([]string{"/bin/fake"}, args...), strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

func TestUsageErrors(t *testing.T) {
	for line, want := range map[string]string{
		"--tpp 2":                    "fake: unknown flag --tpp: did you mean --tp? (see fake --help)",
		"--zzzzzzzz":                 "fake: unknown flag --zzzzzzzz (see fake --help)",
		"--zzzzzzzz=a b":             "fake: unknown flag --zzzzzzzz (see fake --help)",
		"shwo x":                     `fake: unknown verb "shwo": did you mean show? (see fake --help)`,
		"app_test.go":                "fake: unknown verb \"app_test.go\": did you mean -i app_test.go? (see fake --help)",
		"x":                          `fake: unknown verb "x": not among show, pack, completion`,
		"show":                       "fake: fake show needs DIR [FQN] (see fake show --help)",
		"show a b c":                 `fake: unexpected argument "c" (see fake show --help)`,
		"show a --memory 2g":         "fake: unknown flag --memory (see fake show --help)",
		"pack":                       "fake: fake pack needs FILE... (see fake pack --help)",
		"--tp":                       "fake: --tp needs a value (see fake --help)",
		"--tp x":                     `fake: invalid value "x" for --tp: want a whole number such as 64, 1_000_000 or 4k (see fake --help)`,
		"--tp 99999999999999999999k": `fake: invalid value "99999999999999999999k" for --tp: not a whole number that fits`,
		"--memory 3parsecs":          `fake: invalid value "3parsecs" for --memory: unknown suffix "parsecs": want a size such as 512KiB, 80GiB or 2g (see fake --help)`,
		"--memory -1":                `fake: invalid value "-1" for --memory: a size is not negative (see fake --help)`,
		"--lr nan":                   `fake: invalid value "nan" for --lr: not a finite number (see fake --help)`,
		"--kind 2F2B":                `fake: invalid value "2F2B" for --kind: not among GPipe, 1F1B (see fake --help)`,
		"--jobs -1":                  `fake: invalid value "-1" for --jobs: must be 0 or more (see fake --help)`,
		"--jobs 65537":               `fake: invalid value "65537" for --jobs: must be at most 65536 (see fake --help)`,
		"--every 0":                  `fake: invalid value "0" for --every: must be 1 or more (see fake --help)`,
		"--dtype fp8":                `fake: invalid value "fp8" for --dtype: not among float32, bfloat16 (see fake --help)`,
		"--to -":                     `fake: invalid value "-" for --to: a folder is wanted, which is no stream (./- if it is called so) (see fake --help)`,
		"--log-level loud":           `fake: invalid value "loud" for --log-level: not among debug, info, warn, error (see fake --help)`,
		"--quiet=perhaps":            `fake: invalid boolean value "perhaps" for --quiet: parse error (see fake --help)`,
		"show a --tp x":              `fake: invalid value "x" for --tp: want a whole number such as 64, 1_000_000 or 4k (see fake show --help)`,
		"completion powershell":      `fake: no completion for "powershell": not among bash, zsh, fish`,
	} {
		t.Run(line, func(t *testing.T) {
			code, out, errs := new(fake).exec("", strings.Fields(line)...)
			require.Equal(t, 2, code)
			require.Empty(t, out)
			require.True(t, strings.HasPrefix(errs, want), "got %q, want %q", errs, want)
			require.Equal(t, 1, strings.Count(errs, "\n"), "one line: %q", errs)
		})
	}
}

func TestFlags(t *testing.T) {
	f := &fake{}
	code, _, errs := f.exec("", "--tp", "4k", "--memory=1.5GiB", "-lr", "-3e-4", "--kind", "gpipe", "--name", "--tp", "--many", "a,b", "--many=c")
	require.Equal(t, 0, code, errs)
	require.Equal(t, fake{tp: 4000, memory: 3 << 29, lr: -3e-4, kind: "GPipe", name: "--tp", names: []string{"a,b", "c"}, args: []string{}}, *f)

	f = &fake{}
	code, _, errs = f.exec("", "--tensor-parallel", "1_000")
	require.Equal(t, 0, code, errs)
	require.Equal(t, 1000, f.tp)
}

func TestDTypesHaveShortNames(t *testing.T) {
	for _, word := range []string{"bf16", "BF16", "bfloat16"} {
		f := &fake{}
		code, _, errs := f.exec("", "--dtype", word)
		require.Equal(t, 0, code, errs)
		require.Equal(t, "bfloat16", f.dtype)
	}
}

func TestFlagsStandAnywhere(t *testing.T) {
	for _, line := range []string{"show --tp 3 a b", "show a --tp 3 b", "show a b --tp=3", "--tp 3 show a b", "--quiet show a b --tp 3", "show --tp 3 -- a b"} {
		f := &fake{}
		code, _, errs := f.exec("", strings.Fields(line)...)
		require.Equal(t, 0, code, errs)
		require.Equal(t, 3, f.tp, line)
		require.Equal(t, []string{"a", "b"}, f.args, line)
	}
	f := &fake{}
	code, _, errs := f.exec("", "show", "--", "-a", "--tp")
	require.Equal(t, 0, code, errs)
	require.Equal(t, []string{"-a", "--tp"}, f.args)
	code, _, _ = f.exec("", "pack", "-", "b", "c")
	require.Equal(t, 0, code)
	require.Equal(t, []string{"-", "b", "c"}, f.args)
}

func TestHelpGoesToStdout(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"-h"}, {"help"}, {"show", "--help"}, {"help", "show"}, {"show", "a", "b", "c", "-h"}} {
		code, out, errs := new(fake).exec("", args...)
		require.Equal(t, 0, code, args)
		require.Empty(t, errs)
		require.Contains(t, out, "--tp N", args)
		require.Contains(t, out, "--quiet", args)
	}
	_, out, _ := new(fake).exec("", "help", "show")
	require.True(t, strings.HasPrefix(out, "fake show - show one\n\nUSAGE:\n   fake show [flags] DIR [FQN]\n"), out)
	_, out, _ = new(fake).exec("", "--help")
	require.Contains(t, out, "fake --tp 2 | other")
	require.Contains(t, out, "(default: 1)")
	require.NotContains(t, out, "man page")
	code, out, _ := new(fake).exec("", "--version")
	require.Equal(t, 0, code)
	require.True(t, strings.HasPrefix(out, "fake version "), out)
}

func TestErrorsAreOneLineWithTheirCode(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		want string
	}{
		{nil, 0, ""},
		{errors.New("odd"), 1, "fake: odd\n"},
		{exit.Input.Errorf("file x: line 3: bad"), 3, "fake: file x: line 3: bad\n"},
		{exit.No.Errorf("a\nb\r\nc"), 4, "fake: a; b; c\n"},
		{exit.Interrupted.Errorf("saved step 7"), 130, "fake: saved step 7\n"},
		{fmt.Errorf("step 3: %w", context.Canceled), 130, "fake: step 3: interrupted\n"},
		{&os.PathError{Op: "write", Path: "out", Err: syscall.ENOSPC}, 5, "fake: write out: no space left on device\n"},
		{&os.PathError{Op: "write", Path: "out", Err: syscall.EPIPE}, 5, ""},
	} {
		f := &fake{do: func(context.Context, *Env) error { return c.err }}
		code, out, errs := f.exec("", "-q")
		require.Equal(t, c.code, code)
		require.Empty(t, out)
		require.Equal(t, c.want, errs)
	}
}

func TestPanicIsOneLine(t *testing.T) {
	f := &fake{do: func(context.Context, *Env) error { panic("no\nway") }}
	code, out, errs := f.exec("")
	require.Equal(t, 1, code)
	require.Empty(t, out)
	require.Regexp(t, `^fake: bug: no; way at titan/tools/internal/app.*, app_test.go:\d+ \(fake .*; please report this\)\n$`, errs)
}

func TestLog(t *testing.T) {
	f := &fake{do: func(_ context.Context, e *Env) error {
		e.Log.Debug("hidden")
		e.Log.Info("saved", "folder", "a b", "step", 3)
		e.Log.With("rank", 2).Warn("slow")
		fmt.Fprintln(e.Explain, "a table")
		return nil
	}}
	_, _, errs := f.exec("")
	require.Equal(t, "fake: saved folder=\"a b\" step=3\n[rank2] fake: warning: slow\n", errs)
	_, _, errs = f.exec("", "--explain", "--log-level", "debug")
	require.Equal(t, "fake: debug: hidden\nfake: saved folder=\"a b\" step=3\n[rank2] fake: warning: slow\na table\n", errs)
	_, _, errs = f.exec("", "--quiet", "--explain")
	require.Empty(t, errs)
	_, _, errs = f.exec("", "--log-format", "json", "--log-level=warn")
	require.Regexp(t, `^{"time":".*","level":"WARN","msg":"slow","tool":"fake","rank":2}\n$`, errs)
}

func TestASilentProcessNamesItsRank(t *testing.T) {
	f := &fake{do: func(_ context.Context, e *Env) error {
		e.Silence()
		e.Log.Info("said by rank 0 too")
		e.Log.Debug("last calls", "rank", 2)
		return exit.Lost.Errorf("a peer is gone")
	}}
	_, _, errs := f.exec("")
	require.Equal(t, "fake: a peer is gone\n", errs)
	_, _, errs = f.exec("", "--log-level", "debug")
	require.Equal(t, "[rank2] fake: debug: last calls\nfake: a peer is gone\n", errs)
	_, _, errs = f.exec("", "--log-level", "debug", "--quiet")
	require.Equal(t, "fake: a peer is gone\n", errs)
}

func TestASilentProcessLeavesWhatOthersTell(t *testing.T) {
	err := exit.Told(exit.No.Errorf("rank 3: no"))
	f := &fake{do: func(_ context.Context, e *Env) error { return fmt.Errorf("step 2: %w", err) }}
	code, _, errs := f.exec("")
	require.Equal(t, 4, code)
	require.Equal(t, "fake: step 2: rank 3: no\n", errs, "the process that speaks for the job")
	do := f.do
	f.do = func(ctx context.Context, e *Env) error { e.Silence(); return do(ctx, e) }
	code, _, errs = f.exec("")
	require.Equal(t, 4, code)
	require.Empty(t, errs)
}

const small = `{"schema": "titan.manifest/v1", "x-a": 1}`

func TestManifestIO(t *testing.T) {
	pass := &fake{do: func(_ context.Context, e *Env) error {
		m, err := manifest.Read(e.In)
		if err != nil {
			return err
		}
		return e.WriteManifest(m)
	}}
	const want = "{\n  \"schema\": \"titan.manifest/v1\",\n  \"x-a\": 1\n}\n"
	code, out, errs := pass.exec(small)
	require.Equal(t, 0, code, errs)
	require.Equal(t, want, out)
	file := filepath.Join(t.TempDir(), "m.json")
	code, out, _ = pass.exec(small, "-o", file)
	require.Equal(t, 0, code)
	require.Empty(t, out)
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(got))

	read := &fake{do: func(_ context.Context, e *Env) error {
		_, err := e.ReadManifest()
		return err
	}}
	code, _, errs = read.exec(small)
	require.Equal(t, 3, code)
	require.Contains(t, errs, "section model is missing")
	code, _, errs = read.exec("", "-i", file, "--set", "training.stepz=1")
	require.Equal(t, 2, code)
	require.Equal(t, "fake: --set training.stepz: unknown field: did you mean training.steps?\n", errs)
	code, _, errs = read.exec("", "-i", file+".none")
	require.Equal(t, 3, code)
	require.Equal(t, "fake: -i "+file+".none: no such file or directory\n", errs)
}

func TestWriteFileIsWholeOrAbsent(t *testing.T) {
	dir := t.TempDir()
	path, link := filepath.Join(dir, "f"), filepath.Join(dir, "link")
	require.NoError(t, os.WriteFile(path, []byte("old"), 0o640))
	require.NoError(t, os.Symlink("f", link))
	broken := errors.New("broken")
	err := WriteFile(path, func(w io.Writer) error {
		io.WriteString(w, "half")
		return broken
	})
	require.ErrorIs(t, err, broken)
	require.Equal(t, []string{"f", "link"}, names(t, dir))
	require.NoError(t, WriteFile(link, func(w io.Writer) error { _, err := io.WriteString(w, "new"); return err }))
	got, _ := os.ReadFile(path)
	require.Equal(t, "new", string(got))
	info, _ := os.Lstat(link)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
	info, _ = os.Stat(path)
	require.Equal(t, os.FileMode(0o640), info.Mode().Perm())
	err = WriteFile("/dev/full", func(w io.Writer) error { _, err := io.WriteString(w, "x"); return err })
	require.ErrorIs(t, err, syscall.ENOSPC)
	none := filepath.Join(dir, "none", "f")
	require.EqualError(t, WriteFile(none, func(io.Writer) error { return nil }), "open "+none+": no such file or directory")
}

func names(t *testing.T, dir string) (names []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestInterruptCancels(t *testing.T) {
	f := &fake{do: func(ctx context.Context, _ *Env) error {
		require.NoError(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Second):
			return errors.New("not cancelled")
		}
	}}
	code, _, errs := f.exec("")
	require.Equal(t, 130, code)
	require.Equal(t, "fake: interrupted\n", errs)
}

func TestBashCompletion(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("SKIPPED: no bash here, .ci/run is run by one")
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "a job.json"), nil, 0o666))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "runs"), 0o777))
	_, script, errs := new(fake).exec("", "completion", "bash")
	require.Empty(t, errs)
	for line, want := range map[string]string{
		"":                       "show,pack,completion",
		"s":                      "show",
		"--te":                   "--tensor-parallel",
		"show --te":              "--tensor-parallel",
		"--explain ":             "show,pack,completion", // a switch has no value
		"--kind ":                "GPipe,1F1B",
		"--kind = 1":             "1F1B", // bash's words of --kind=1
		"show --log-format ":     "text,json",
		"--tp ":                  "", // a number
		"--name ":                "",
		"-i ":                    "a job.json,runs",
		"show runs ":             "a job.json,runs",
		"--to ":                  "runs",
		"--model tiny-":          "tiny-259",
		"--model r":              "runs",
		"--ac se":                "selective:op,selective:cheap",
		"--ac selective :":       "op,cheap", // bash's words of --ac selective:
		"--ac selective : o":     "op",
		"--ac = selective : o":   "op",
		"show --kind 1F1B --log": "--log-format,--log-level",
	} {
		c := exec.Command("bash", "-c", script+`
COMP_WORDS=("$@") COMP_CWORD=$(($#-1)); _fake; IFS=,; echo "${COMPREPLY[*]}"`, "bash", "fake")
		c.Args = append(c.Args, strings.Split(line, " ")...)
		c.Dir = dir
		out, err := c.CombinedOutput()
		require.NoError(t, err, string(out))
		require.Equal(t, want, strings.TrimSpace(string(out)), line)
	}
}

func TestCompletionScripts(t *testing.T) {
	code, script, _ := new(fake).exec("", "completion", "zsh")
	require.Equal(t, 0, code)
	require.Contains(t, script, "bashcompinit")
	require.Contains(t, script, "complete -o filenames -F _fake fake\n")

	code, script, _ = new(fake).exec("", "completion", "fish")
	require.Equal(t, 0, code)
	const none = "complete -c fake -n 'not __fish_seen_subcommand_from show pack completion'"
	for _, line := range []string{
		none + ` -l kind -x -a "GPipe 1F1B"`, none + " -l tp -l tensor-parallel -x", none + " -s i -l in -r", none + " -l explain",
		none + ` -l to -x -a "(__fish_complete_directories)"`, "complete -c fake -n '__fish_use_subcommand' -a show -d \"show one\"",
	} {
		require.Contains(t, script, line+"\n")
	}
}

func TestManPage(t *testing.T) {
	code, page, _ := new(fake).exec("", "man")
	require.Equal(t, 0, code)
	require.True(t, strings.HasPrefix(page, ".TH fake 1 "), page)
	for _, part := range []string{
		".SH NAME\nfake \\- do nothing well\n", ".B fake [flags]\n.B fake show [flags] DIR [FQN]\n", ".EX\nfake \\-\\-tp 2 | other\n.EE",
		".TP\n.B \\-\\-tp N, \\-\\-tensor\\-parallel N\ndegree N (default: 1)\n", ".SS fake show [flags] DIR [FQN]\nshow one\n", "\n.SS fake completion [flags] SHELL\n",
	} {
		require.Contains(t, page, part)
	}
	require.Equal(t, 1, strings.Count(page, `\-\-log\-level`), "the flags that all verbs share stand once")
	require.NotContains(t, page, "fake man")
}

func TestAboutFitsATerminal(t *testing.T) {
	long := strings.Repeat("many words ", 30)
	require.Equal(t, strings.TrimSpace(long), strings.ReplaceAll(wrap(long), "\n", " "))
	for _, l := range strings.Split(wrap(long), "\n") {
		require.LessOrEqual(t, len(l), 95)
	}
}

func TestRoffPrintsTextAsItIs(t *testing.T) {
	require.Equal(t, "\\&.SH\na \\e \\-b\n\\&'x", roff(".SH\na \\ -b\n'x"))
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("SKIPPED: no groff here, so pages are not laid out")
	}
	_, page, _ := new(fake).exec("", "man")
	c := exec.Command(groff, "-man", "-ww", "-Tascii", "-P-cbou")
	c.Stdin = strings.NewReader(page)
	var warnings bytes.Buffer
	c.Stderr = &warnings
	out, err := c.Output()
	require.NoError(t, err, warnings.String())
	require.Empty(t, warnings.String())
	require.Contains(t, string(out), "--tp N, --tensor-parallel N")
	require.Contains(t, string(out), "fake --tp 2 | other")
}

// What CheckFile lets pass WriteFile can write, and a try leaves nothing.
func TestCheckFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	require.NoError(t, CheckFile("-o", path))
	require.NoError(t, CheckFile("-o", "/dev/full"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
	require.NoError(t, os.WriteFile(path, nil, 0o644))
	for bad, why := range map[string]string{
		"/proc/x":                  "-o /proc/x: no such file or directory",
		dir:                        "-o " + dir + ": it is a folder: name a file",
		filepath.Join(path, "x"):   "-o " + path + "/x: " + path + " is not a folder",
		filepath.Join(dir, "no/x"): "-o " + dir + "/no/x: " + dir + "/no is not a folder",
	} {
		err := CheckFile("-o", bad)
		require.EqualError(t, err, why)
		require.Equal(t, int(exit.Input), exit.Code(err))
	}
}
