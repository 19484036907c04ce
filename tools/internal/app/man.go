package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// manVerb prints t's man page; `make man` calls it.
func manVerb(t Tool) Verb {
	return Verb{Name: "man", Usage: "print the man page", hidden: true, Run: func(_ context.Context, e *Env) error {
		_, err := io.WriteString(e.Out, manPage(t))
		return err
	}}
}

// exits are the exit codes of every tool.
const exits = `.SH EXIT STATUS
0 done; 1 a bug, or unknown; 2 the command line; 3 bad input: manifest, checkpoint, data, schedule; 4 the answer is no: no
plan fits, a difference was found, the loss is not finite; 5 a device, a peer or I/O was lost; 130 interrupted.
An error is one line on stderr.
`

// manPage is t's page in roff's man macros: what it does alone, its verbs with their flags, the flags that all share.
func manPage(t Tool) string {
	t.Verbs = append(slices.Clone(t.Verbs), completionVerb(t))
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s %s\" \"titan\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.nf\n", roff(t.Name), roff(t.Name), roff(Version()), roff(t.Name), roff(t.Usage))
	for _, l := range strings.Split(usageText(t), "\n") {
		fmt.Fprintf(&b, ".B %s\n", roff(l))
	}
	fmt.Fprintf(&b, ".fi\n.SH DESCRIPTION\n%s\n", roff(t.About))
	shared := manFlags(&b, ".SH FLAGS\n", t.root(), nil)
	b.WriteString(".SH VERBS\n")
	for _, v := range t.Verbs {
		fmt.Fprintf(&b, ".SS %s\n%s\n", roff(strings.TrimSpace(t.Name+" "+v.Name+" [flags] "+v.Args)), roff(v.Usage))
		shared = manFlags(&b, "", v, shared)
		manExample(&b, ".PP\nExample:\n", v.Example)
	}
	b.WriteString(".SH FLAGS OF EVERY TOOL\n")
	if slices.ContainsFunc(shared, func(f cli.Flag) bool { return f.Names()[0] == "set" }) {
		b.WriteString("Those of manifests are there where one is read or written.\n")
	}
	for _, f := range shared {
		manFlag(&b, f)
	}
	b.WriteString(exits)
	manExample(&b, ".SH EXAMPLE\n", t.Example)
	return b.String()
}

// manFlags writes v's own flags under a heading, and returns shared with those of the common ones that it lacks.
func manFlags(b *strings.Builder, heading string, v Verb, shared []cli.Flag) []cli.Flag {
	flags := slices.Clone(v.Flags)
	slices.SortFunc(flags, func(a, b cli.Flag) int { return strings.Compare(a.Names()[0], b.Names()[0]) })
	if len(flags) > 0 {
		b.WriteString(heading)
	}
	for _, f := range flags {
		manFlag(b, f)
	}
	var o common
	for _, f := range o.flags(v) {
		if !slices.ContainsFunc(shared, func(s cli.Flag) bool { return s.Names()[0] == f.Names()[0] }) {
			shared = append(shared, f)
		}
	}
	return shared
}

// manFlag writes a flag as --help shows it: its names and value, then what it does.
func manFlag(b *strings.Builder, f cli.Flag) {
	names, usage, _ := strings.Cut(f.String(), "\t")
	fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(strings.TrimSpace(names)), roff(strings.TrimSpace(usage)))
}

func manExample(b *strings.Builder, heading, example string) {
	if example == "" {
		return
	}
	fmt.Fprintf(b, "%s.PP\n.RS 4\n.EX\n%s\n.EE\n.RE\n", heading, roff(strings.TrimSpace(example)))
}

// roff is text as roff prints it: no escapes, no requests, dashes that can be typed.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
