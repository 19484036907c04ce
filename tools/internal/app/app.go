// Package app is the one wrapper over urfave/cli that every tool runs in. A tool is a [Tool] value: its flags,
// its verbs, and for each a function that gets an [Env]. [Main] (or [Run], for tests) parses the command line,
// gives the Env its streams and its logger, and turns the error that comes back into one line and an exit code.
//
// The rules of the command line that hold for all tools are kept here, so that a tool cannot break them: data
// alone on stdout, one-line errors, exit codes, whole output files, help, completion and man pages.
package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
)

// Tool is one program. Build it afresh for every run: its flags point at the variables they fill.
type Tool struct {
	Name     string // as typed
	Usage    string // one line
	About    string // a paragraph for --help
	Example  string // one pipeline, for --help
	Flags    []cli.Flag
	Run      func(ctx context.Context, e *Env) error // what the tool does without a verb; nil: a verb is needed
	Manifest bool                                    // Run reads a manifest and writes it: gives it -i, -o and --set
	Starts   bool                                    // Run makes a manifest: gives it -o and --set
	Verbs    []Verb
}

// Verb is one more thing a tool does: TOOL VERB ARGS.
type Verb struct {
	Name     string
	Usage    string // one line
	Args     string // the arguments it takes: "DIR [FQN]", "FILE..."; "" for none
	Example  string // one command or pipeline, may be ""
	Flags    []cli.Flag
	Run      func(ctx context.Context, e *Env) error
	Manifest bool // as in Tool
	hidden   bool
	starts   bool // as in Tool
}

// Main runs t as a process and ends it.
func Main(t Tool) { os.Exit(Run(t, os.Args, os.Stdin, os.Stdout, os.Stderr)) }

// Run runs t with the command line args (args[0] is the program) and returns the exit code. A first SIGINT
// or SIGTERM cancels the context that the tool's function gets; one that comes at least a second later kills the process.
func Run(t Tool, args []string, in io.Reader, out, errw io.Writer) (code int) {
	screen := &screen{w: errw}
	env := &Env{tool: t.Name, In: in, Out: out, Explain: io.Discard, Program: t.Name, screen: screen}
	if len(args) > 0 && strings.Contains(args[0], "/") { // not found on PATH
		env.Program = args[0]
	}
	env.Log = newLogger(screen, t.Name, "text", "info", false)
	defer func() {
		if v := recover(); v != nil {
			code = env.fail(fmt.Errorf("bug: %v at %s (%s %s; please report this)", v, panicSite(), t.Name, Version()))
		}
	}()
	// A closed stdout is then an error of the write, and a closed stderr does not end a training run.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, func() { // under a launcher one interrupt comes twice, from the terminal and passed on
		time.Sleep(time.Second)
		stop()
	})

	t.Verbs = append(t.Verbs, completionVerb(t), manVerb(t))
	line, err := parseLine(t, args)
	if err != nil {
		return env.fail(err)
	}
	return env.fail(build(t, env).RunContext(ctx, line.argv(t.Name)))
}

// fail reports err, if any, and returns its exit code. A reader of our output that went away is not worth a line.
func (e *Env) fail(err error) int {
	if err == nil {
		return int(exit.OK)
	}
	if errors.Is(err, syscall.EPIPE) {
		return int(exit.Lost)
	}
	if e.silent && (exit.IsTold(err) || exit.Code(err) == int(exit.Interrupted)) {
		return exit.Code(err) // the process that speaks for the job says so
	}
	msg := strings.Join(strings.FieldsFunc(err.Error(), func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if errors.Is(err, context.Canceled) && exit.Code(err) == int(exit.Interrupted) {
		msg = strings.Replace(msg, context.Canceled.Error(), "interrupted", 1)
	}
	e.Log.Error(msg)
	return exit.Code(err)
}

// build makes the cli.App of t. Parse errors of flag values come back as usage errors, and nothing but the
// caller exits or prints errors.
func build(t Tool, env *Env) *cli.App {
	a := &cli.App{
		Name: t.Name, HelpName: t.Name, Usage: t.Usage, Version: Version(),
		UsageText:             usageText(t),
		Description:           description(t.About, t.Example),
		Writer:                env.Out,
		ErrWriter:             env.screen,
		HideHelpCommand:       true,
		ExitErrHandler:        func(*cli.Context, error) {},
		CustomAppHelpTemplate: helpTemplate,
		OnUsageError:          usageError,

		DisableSliceFlagSeparator: true, // --set a=1,2 is one assignment
	}
	a.Flags, a.Action = env.bind(t.root())
	for _, v := range t.Verbs {
		c := &cli.Command{
			Name: v.Name, Usage: v.Usage, ArgsUsage: v.Args, Hidden: v.hidden,
			Description:        description("", v.Example),
			HideHelpCommand:    true,
			CustomHelpTemplate: helpTemplate,
			OnUsageError:       usageError,
		}
		c.Flags, c.Action = env.bind(v)
		a.Commands = append(a.Commands, c)
	}
	return a
}

// root is what t does without a verb.
func (t Tool) root() Verb {
	return Verb{Flags: t.Flags, Run: t.Run, Manifest: t.Manifest, starts: t.Starts}
}

// bind joins v's own flags with the common ones, and makes its function a cli action.
func (e *Env) bind(v Verb) ([]cli.Flag, cli.ActionFunc) {
	var o common
	return slices.Concat(v.Flags, o.flags(v)), func(c *cli.Context) error {
		if v.Run == nil {
			return exit.Usage.Errorf("a verb is needed (see %s --help)", e.tool)
		}
		e.command = c.Command.HelpName
		e.Args = c.Args().Slice()
		e.Given = c.IsSet
		e.apply(o)
		return v.Run(c.Context, e)
	}
}

func usageError(c *cli.Context, err error, _ bool) error {
	// The flag package says: invalid value "x" for flag -tp: why, or without the word flag.
	why := strings.Replace(err.Error(), " for flag -", " for -", 1)
	return exit.Usage.Errorf("%s (see %s --help)", strings.Replace(why, " for -", " for --", 1), c.Command.HelpName)
}

func description(about, example string) string {
	about = wrap(about)
	if example == "" {
		return about
	}
	var b bytes.Buffer
	if about != "" {
		b.WriteString(about + "\n\n")
	}
	b.WriteString("Example:\n")
	for _, l := range strings.Split(strings.TrimSpace(example), "\n") {
		b.WriteString("\n    " + l)
	}
	return b.String()
}

// wrap breaks a paragraph into lines that a terminal of 100 columns shows whole, indented as help is.
func wrap(text string) string {
	var b strings.Builder
	width := 0
	for _, word := range strings.Fields(text) {
		switch {
		case width+1+len(word) > 95:
			b.WriteByte('\n')
			width = 0
		case width > 0:
			b.WriteByte(' ')
			width++
		}
		b.WriteString(word)
		width += len(word)
	}
	return b.String()
}

func usageText(t Tool) string {
	var lines []string
	if t.Run != nil {
		lines = append(lines, t.Name+" [flags]")
	}
	for _, v := range t.Verbs {
		if !v.hidden {
			lines = append(lines, strings.TrimSpace(t.Name+" "+v.Name+" [flags] "+v.Args))
		}
	}
	return strings.Join(lines, "\n")
}

// Version is the module version that this binary was built from, as the Go tool stamps it.
func Version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" {
		return b.Main.Version
	}
	return "(devel)"
}

// panicSite is the function, file and line of the panic being recovered.
func panicSite() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	panicking := false
	for {
		f, more := frames.Next()
		if panicking && !strings.HasPrefix(f.Function, "runtime.") {
			return fmt.Sprintf("%s, %s:%d", f.Function, filepath.Base(f.File), f.Line)
		}
		panicking = panicking || f.Function == "runtime.gopanic"
		if !more {
			return "unknown place"
		}
	}
}

const helpTemplate = `{{.HelpName}} - {{.Usage}}

USAGE:
   {{if .UsageText}}{{wrap .UsageText 3}}{{else}}{{.HelpName}} [flags]{{if .ArgsUsage}} {{.ArgsUsage}}{{end}}{{end}}
{{- if .Description}}

   {{wrap .Description 3}}{{end}}
{{- if and (not .ArgsUsage) .VisibleCommands}}

VERBS:{{template "visibleCommandTemplate" .}}{{end}}

FLAGS:{{template "visibleFlagCategoryTemplate" .}}`
