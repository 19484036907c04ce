package app

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
)

// completionVerb prints a script that completes t's verbs, flags and choices.
func completionVerb(t Tool) Verb {
	scripts := map[string]func(io.Writer, Tool){"bash": bashScript, "zsh": zshScript, "fish": fishScript}
	return Verb{
		Name: "completion", Usage: "print a completion script for bash, zsh or fish", Args: "SHELL",
		Example: "source <(" + t.Name + " completion bash)",
		Run: func(_ context.Context, e *Env) error {
			script := scripts[e.Args[0]]
			if script == nil {
				return exit.Usage.Errorf("no completion for %q: not among bash, zsh, fish", e.Args[0])
			}
			script(e.Out, t)
			return nil
		},
	}
}

// option is a flag as a shell sees it: what is typed for it, and what may follow.
type option struct {
	names  []string // with their dashes
	takes  bool     // it has a value:
	values []string // these have names,
	paths  string   // and it may be a FILE or a DIR
}

// options are v's flags. What a flag's value is, its usage says: a `FILE` or `DIR` in back quotes is one.
func options(v Verb) (all []option) {
	var c common
	for _, f := range slices.Concat(v.Flags, c.flags(v)) {
		var o option
		for _, name := range f.Names() {
			o.names = append(o.names, strings.Repeat("-", min(len(name), 2))+name)
		}
		if g, ok := f.(*cli.GenericFlag); ok {
			o.takes = true
			if c, ok := g.Value.(*choice); ok {
				o.values = c.choices
			}
			if _, word, _ := strings.Cut(g.Usage, "`"); strings.HasPrefix(word, "FILE`") || strings.HasPrefix(word, "DIR`") {
				o.paths, _, _ = strings.Cut(word, "`")
			}
		}
		all = append(all, o)
	}
	return append(all, option{names: []string{"--help", "-h"}})
}

// compgen is how bash finds o's values.
func (o option) compgen() string {
	var how []string
	if len(o.values) > 0 {
		how = append(how, fmt.Sprintf("-W %q", strings.Join(o.values, " ")))
	}
	if o.paths != "" {
		how = append(how, map[string]string{"FILE": "-f", "DIR": "-d"}[o.paths])
	}
	return strings.Join(how, " ")
}

// fish is o as an option of fish's complete.
func (o option) fish() string {
	var b strings.Builder
	for _, name := range o.names {
		if dashes := strings.TrimLeft(name, "-"); strings.HasPrefix(name, "--") {
			b.WriteString(" -l " + dashes)
		} else {
			b.WriteString(" -s " + dashes)
		}
	}
	values := o.values
	if o.paths == "DIR" {
		values = append(slices.Clip(values), "(__fish_complete_directories)")
	}
	switch {
	case o.paths == "FILE":
		b.WriteString(" -r")
	case o.takes:
		b.WriteString(" -x")
	}
	if len(values) > 0 {
		fmt.Fprintf(&b, " -a %q", strings.Join(values, " "))
	}
	return b.String()
}

func visible(t Tool) (names []string, all []Verb) {
	all = []Verb{t.root()}
	for _, v := range append(slices.Clone(t.Verbs), completionVerb(t)) {
		if !v.hidden {
			names = append(names, v.Name)
			all = append(all, v)
		}
	}
	return names, all
}

// bashHead finds the word to complete, the one before it and the verb. bash cuts words at = and :, of which --kind=1F1B and
// selective:op have one.
const bashHead = `() {
  local IFS=$'\n' cur=${COMP_WORDS[COMP_CWORD]} at=$((COMP_CWORD-1)) stem= verb= word
  case $cur in :|=) cur= at=$COMP_CWORD;; esac
  case ${COMP_WORDS[at]} in :) stem=${COMP_WORDS[at-1]}: at=$((at-2));; esac
  case ${COMP_WORDS[at]} in =) at=$((at-1));; esac
  for word in "${COMP_WORDS[@]:1:at}"; do
    case $word in %s) verb=$word; break;; esac
  done
  case "$verb ${COMP_WORDS[at]}" in
`

// bashTail asks compgen for what the case chose, without what of a word bash keeps.
const bashTail = `  esac
  COMPREPLY=($(IFS=' '; compgen "$@" -- "$stem$cur"))
  COMPREPLY=("${COMPREPLY[@]#"$stem"}")
}
complete -o filenames -F %s %s
`

// patterns are the cases of bash that o has after v.
func patterns(v Verb, o option) string {
	var cases []string
	for _, name := range o.names {
		cases = append(cases, fmt.Sprintf("%q", v.Name+" "+name))
	}
	return strings.Join(cases, "|")
}

// bashScript chooses by the word before: a flag with a value has its values alone. Else a dash begins a flag, and what
// is left is a verb, or a verb's argument.
func bashScript(w io.Writer, t Tool) {
	f := "_" + strings.ReplaceAll(t.Name, "-", "_")
	names, all := visible(t)
	fmt.Fprintf(w, f+bashHead, strings.Join(names, "|"))
	for _, v := range all {
		for _, o := range options(v) {
			if o.takes {
				fmt.Fprintf(w, "    %s) set -- %s;;\n", patterns(v, o), o.compgen())
			}
		}
	}
	fmt.Fprintf(w, "    *) case \"$verb $cur\" in\n")
	for _, v := range all {
		var flags []string
		for _, o := range options(v) {
			flags = append(flags, o.names...)
		}
		fmt.Fprintf(w, "      %q*) set -- -W %q;;\n", v.Name+" -", strings.Join(flags, " "))
	}
	fmt.Fprintf(w, "      ' '*) set -- -W %q;;\n      *) set -- -f;;\n    esac;;\n", strings.Join(names, " "))
	fmt.Fprintf(w, bashTail, f, t.Name)
}

// zshScript lets zsh run the script for bash.
func zshScript(w io.Writer, t Tool) {
	fmt.Fprintln(w, "autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit")
	bashScript(w, t)
}

func fishScript(w io.Writer, t Tool) {
	names, all := visible(t)
	for i, v := range all {
		seen := "__fish_seen_subcommand_from " + v.Name
		if i == 0 {
			seen = "not __fish_seen_subcommand_from " + strings.Join(names, " ")
		} else {
			fmt.Fprintf(w, "complete -c %s -n '__fish_use_subcommand' -a %s -d %q\n", t.Name, v.Name, v.Usage)
		}
		for _, o := range options(v) {
			fmt.Fprintf(w, "complete -c %s -n '%s'%s\n", t.Name, seen, o.fish())
		}
	}
}
