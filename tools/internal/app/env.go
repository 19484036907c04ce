package app

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Env is what a tool's function works with.
type Env struct {
	Args    []string               // the arguments after the verb
	Given   func(flag string) bool // whether the command line sets a flag
	In      io.Reader
	Out     io.Writer    // data alone
	Explain io.Writer    // tables for people: stderr under --explain, else nowhere
	Log     *slog.Logger // stderr; an attribute "rank" becomes a prefix
	Program string       // as it was called, for a command that is told to people

	tool    string
	command string // tool, or tool and verb
	common  common
	screen  *screen
	silent  bool // Silence was called
}

// common holds the flags that every tool has, and those of tools that read or write a manifest.
type common struct {
	in, out                    string
	sets                       []string
	explain, quiet, noProgress bool
	logFormat, logLevel        string
}

const commonCategory = "Every tool:"

func (o *common) flags(v Verb) []cli.Flag {
	o.logFormat, o.logLevel = "text", "info"
	fs := []cli.Flag{
		Switch(&o.explain, "print a table for people on stderr", "explain"),
		Switch(&o.quiet, "print errors only", "quiet", "q"),
		Switch(&o.noProgress, "draw no progress bar", "no-progress"),
		Choice(&o.logFormat, []string{"text", "json"}, "form of log lines", "log-format"),
		Choice(&o.logLevel, []string{"debug", "info", "warn", "error"}, "least level logged", "log-level"),
	}
	if v.Manifest {
		fs = append(fs, Text(&o.in, "manifest to read, from `FILE` or - for stdin", "i", "in"))
	}
	if v.Manifest || v.starts {
		fs = append(fs,
			Text(&o.out, "write the manifest to `FILE`, whole or not at all, or - for stdout", "o"),
			Texts(&o.sets, "override a manifest field: `section.field=value` (repeatable)", "set"))
	}
	for _, f := range fs {
		switch f := f.(type) {
		case *cli.BoolFlag:
			f.Category = commonCategory
		case *cli.GenericFlag:
			f.Category = commonCategory
		}
	}
	return fs
}

func (e *Env) apply(o common) {
	e.common = o
	e.Log = newLogger(e.screen, e.tool, o.logFormat, o.logLevel, o.quiet)
	if o.explain && !o.quiet {
		e.Explain = e.screen
	}
}

// ReadManifest reads the manifest that -i names, or stdin's. It applies --set, then edits (a tool's own flags),
// and validates what comes out.
func (e *Env) ReadManifest(edits ...func(*manifest.Manifest) error) (*manifest.Manifest, error) {
	in := e.In
	switch {
	case e.common.in != "" && e.common.in != "-":
		f, err := os.Open(e.common.in)
		if err != nil {
			return nil, exit.Input.Errorf("-i %s: %w", e.common.in, errors.Unwrap(err))
		}
		defer f.Close()
		in = f
	case e.common.in == "" && isTerminal(e.In):
		return nil, exit.Usage.Errorf("stdin is a terminal: pipe a manifest in (meshplan ... | %s) or name one with -i FILE", e.command)
	}
	m, err := manifest.Read(in)
	if err != nil {
		if in != e.In {
			err = fmt.Errorf("%s: %w", e.common.in, err)
		}
		return nil, err
	}
	return m, e.finish(m, edits)
}

// NewManifest makes a manifest from nothing: edits, then --set, then validation.
func (e *Env) NewManifest(edits ...func(*manifest.Manifest) error) (*manifest.Manifest, error) {
	m := &manifest.Manifest{Schema: manifest.SchemaName}
	for _, edit := range edits {
		if err := edit(m); err != nil {
			return nil, err
		}
	}
	return m, e.finish(m, nil)
}

func (e *Env) finish(m *manifest.Manifest, edits []func(*manifest.Manifest) error) error {
	if err := manifest.Set(m, e.common.sets...); err != nil {
		var bad *manifest.Error
		if errors.As(err, &bad) {
			return exit.Usage.Errorf("--set %s: %s", bad.Path, bad.Why)
		}
		return err
	}
	for _, edit := range edits {
		if err := edit(m); err != nil {
			return err
		}
	}
	return manifest.Validate(m)
}

// Open opens the file that a flag or argument names, - for stdin.
func (e *Env) Open(path string) (io.ReadCloser, error) {
	if path == "-" {
		return io.NopCloser(e.In), nil
	}
	return os.Open(path)
}

// WriteFile sends what write writes to the file that a flag names, whole or not at all, or for - to stdout.
func (e *Env) WriteFile(path string, write func(io.Writer) error) error {
	if path == "-" {
		return write(e.Out)
	}
	return WriteFile(path, write)
}

// OutIsTerminal reports whether data on stdout would go to a person's screen.
func (e *Env) OutIsTerminal() bool { return isTerminal(e.Out) }

// OutFile is the file that -o names, "" for stdout.
func (e *Env) OutFile() string { return strings.TrimPrefix(e.common.out, "-") }

// CheckOut makes sure, before long work, that the file that -o names can be made.
func (e *Env) CheckOut() error {
	if e.OutFile() == "" {
		return nil
	}
	return CheckFile("-o", e.OutFile())
}

// WriteManifest writes m to the file that -o names, or to stdout.
func (e *Env) WriteManifest(m *manifest.Manifest) error {
	return e.WriteOut(func(w io.Writer) error { return manifest.Write(w, m) })
}

// WriteOut sends what write writes to the file that -o names, whole or not at all, or to stdout.
func (e *Env) WriteOut(write func(io.Writer) error) error {
	return e.WriteFile(cmp.Or(e.common.out, "-"), write)
}

// WriteJSON writes v as one indented JSON document.
func WriteJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// Silence drops all output but errors, and under --log-level debug what names this process's rank: of a process that is
// not the one to speak for its job.
func (e *Env) Silence() {
	e.silent = true
	e.Log = slog.New(ofRank{newLogger(e.screen, e.tool, e.common.logFormat, e.common.logLevel, e.common.quiet).Handler()})
	e.common.quiet, e.common.noProgress, e.common.out = true, true, ""
	e.Out, e.Explain = io.Discard, io.Discard
}

// Console is where a person follows a run: stderr, nowhere under --quiet; a line is a log line under --log-format json.
func (e *Env) Console() io.Writer {
	switch {
	case e.common.quiet:
		return io.Discard
	case e.common.logFormat == "json":
		return lines{e.Log}
	}
	return e.screen
}

// lines logs what is written, one line a call.
type lines struct{ log *slog.Logger }

func (l lines) Write(p []byte) (int, error) {
	l.log.Info(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
