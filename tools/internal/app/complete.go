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

// words lists what may follow v's name: its flags, and for each flag with choices those.
func words(v Verb) (flags []string, choices map[string][]string) {
	var o common
	choices = map[string][]string{}
	for _, f := range slices.Concat(v.Flags, o.flags(v)) {
		for _, name := range f.Names() {
			dashed := "--" + name
			if len(name) == 1 {
				dashed = "-" + name
			}
			flags = append(flags, dashed)
			if g, ok := f.(*cli.GenericFlag); ok {
				if c, ok := g.Value.(*choice); ok {
					choices[dashed] = c.choices
				}
			}
		}
	}
	return append(flags, "--help"), choices
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

func bashScript(w io.Writer, t Tool) {
	f := "_" + strings.ReplaceAll(t.Name, "-", "_")
	names, all := visible(t)
	fmt.Fprintf(w, "%s() {\n  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb= word\n", f)
	fmt.Fprintf(w, "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n    case $word in %s) verb=$word; break;; esac\n  done\n", strings.Join(names, "|"))
	fmt.Fprintf(w, "  local words=\n  case \"$verb $prev\" in\n")
	for _, v := range all {
		_, choices := words(v)
		for _, flag := range sortedKeys(choices) {
			fmt.Fprintf(w, "    %q) words=%q;;\n", v.Name+" "+flag, strings.Join(choices[flag], " "))
		}
	}
	fmt.Fprintf(w, "  esac\n  if [ -z \"$words\" ] && [ \"${cur:0:1}\" = - ]; then\n    case \"$verb\" in\n")
	for _, v := range all {
		flags, _ := words(v)
		fmt.Fprintf(w, "      %q) words=%q;;\n", v.Name, strings.Join(flags, " "))
	}
	fmt.Fprintf(w, "    esac\n  elif [ -z \"$words$verb\" ]; then\n    words=%q\n  fi\n", strings.Join(names, " "))
	fmt.Fprintf(w, "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n}\ncomplete -o filenames -F %s %s\n", f, t.Name)
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
		flags, choices := words(v)
		for _, flag := range flags {
			option := "-l " + strings.TrimLeft(flag, "-")
			if !strings.HasPrefix(flag, "--") {
				option = "-s " + flag[1:]
			}
			if c := choices[flag]; c != nil {
				option += " -x -a " + fmt.Sprintf("%q", strings.Join(c, " "))
			}
			fmt.Fprintf(w, "complete -c %s -n '%s' %s\n", t.Name, seen, option)
		}
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
