package app

import (
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// line is a command line taken apart: flags may stand before or after a verb and its arguments.
type line struct {
	verb  string   // "" for the tool itself
	flags []string // --name=value or --name
	args  []string
}

// argv is the line as urfave/cli parses it: it stops looking for flags at the first argument.
func (l line) argv(tool string) []string {
	argv := []string{tool}
	if l.verb != "" {
		argv = append(argv, l.verb)
	}
	argv = append(argv, l.flags...)
	if len(l.args) > 0 {
		argv = append(append(argv, "--"), l.args...)
	}
	return argv
}

// parseLine takes args apart by t's verbs and flags. Its errors are usage errors: an unknown verb or flag, with
// the nearest known one, a flag without its value, too few arguments or too many.
func parseLine(t Tool, args []string) (line, error) {
	if len(args) > 0 {
		args = args[1:]
	}
	anywhere := valueFlags(t)
	raw, words := splitFlags(args, anywhere)
	if len(words) > 0 && words[0] == "help" {
		words, raw = words[1:], []string{"--help"}
	}
	l := line{flags: raw, args: words}
	v := t.root()
	if len(words) > 0 {
		i := slices.IndexFunc(t.Verbs, func(v Verb) bool { return v.Name == words[0] })
		if i < 0 {
			for _, f := range raw { // what follows an unknown flag may be its value, not a verb
				if _, ok := anywhere[flagName(f)]; !ok {
					return l, unknownFlag(t.Name, f, anywhere)
				}
			}
			return l, unknownVerb(t, words[0])
		}
		v, l.verb, l.args = t.Verbs[i], words[0], words[1:]
	}
	where := strings.TrimSpace(t.Name + " " + l.verb)
	known := flagNames(v)
	for _, f := range l.flags {
		name := flagName(f)
		switch takesValue, ok := known[name]; {
		case name == "help" || name == "h":
			return line{verb: l.verb, flags: []string{"--help"}}, nil
		case l.verb == "" && (name == "version" || name == "v"):
			return line{flags: []string{"--version"}}, nil
		case !ok:
			return l, unknownFlag(where, f, known)
		case takesValue && !strings.Contains(f, "="):
			return l, exit.Usage.Errorf("--%s needs a value (see %s --help)", name, where)
		}
	}
	return l, checkArgs(where, v.Args, l.args)
}

// splitFlags parts flags from words. A flag in takesValue swallows the next argument unless it holds an "=".
func splitFlags(args []string, takesValue map[string]bool) (flags, words []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return flags, append(words, args[i+1:]...)
		case len(a) < 2 || a[0] != '-':
			words = append(words, a)
		case takesValue[flagName(a)] && !strings.Contains(a, "=") && i+1 < len(args):
			i++
			flags = append(flags, a+"="+args[i])
		default:
			flags = append(flags, a)
		}
	}
	return flags, words
}

// flagName is the name in -name, --name and --name=value.
func flagName(arg string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	return name
}

// flagNames maps every name of v's flags to whether it takes a value.
func flagNames(v Verb) map[string]bool {
	var o common
	known := map[string]bool{}
	for _, f := range slices.Concat(v.Flags, o.flags(v)) {
		d, ok := f.(cli.DocGenerationFlag)
		for _, name := range f.Names() {
			known[name] = ok && d.TakesValue()
		}
	}
	return known
}

// valueFlags is the union of the flags that take a value over t and its verbs: a name means the same in all.
func valueFlags(t Tool) map[string]bool {
	all := flagNames(t.root())
	for _, name := range []string{"help", "h", "version", "v"} {
		all[name] = false
	}
	for _, v := range t.Verbs {
		for name, takesValue := range flagNames(v) {
			all[name] = all[name] || takesValue
		}
	}
	return all
}

func unknownVerb(t Tool, word string) error {
	var names []string
	for _, v := range t.Verbs {
		if !v.hidden {
			names = append(names, v.Name)
		}
	}
	if hint := readFile(t, word); hint != "" {
		return exit.Usage.Errorf("unknown verb %q: did you mean %s? (see %s --help)", word, hint, t.Name)
	}
	if near := manifest.Nearest(word, names); near != "" {
		return exit.Usage.Errorf("unknown verb %q: did you mean %s? (see %s --help)", word, near, t.Name)
	}
	return exit.Usage.Errorf("unknown verb %q: not among %s", word, strings.Join(names, ", "))
}

// readFile is how t reads the file that a word names, "" where it does not or there is none.
func readFile(t Tool, word string) string {
	_, err := os.Stat(word)
	switch {
	case err != nil:
	case t.Manifest:
		return "-i " + word
	case t.Run == nil && t.Verbs[0].Args != "":
		return t.Name + " " + t.Verbs[0].Name + " " + word
	}
	return ""
}

func unknownFlag(where, arg string, known map[string]bool) error {
	names := []string{"help", "version"}
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	arg, _, _ = strings.Cut(arg, "=")
	if near := manifest.Nearest(flagName(arg), names); near != "" {
		dashes := "--"
		if len(near) == 1 {
			dashes = "-"
		}
		return exit.Usage.Errorf("unknown flag %s: did you mean %s%s? (see %s --help)", arg, dashes, near, where)
	}
	return exit.Usage.Errorf("unknown flag %s (see %s --help)", arg, where)
}

// checkArgs counts args against usage: "A B [C]" takes 2 or 3, "FILE..." one and more.
func checkArgs(where, usage string, args []string) error {
	words := strings.Fields(usage)
	least := slices.IndexFunc(words, func(w string) bool { return w[0] == '[' })
	if least < 0 {
		least = len(words)
	}
	if len(args) < least {
		return exit.Usage.Errorf("%s needs %s (see %s --help)", where, usage, where)
	}
	if len(args) > len(words) && !strings.HasSuffix(strings.TrimSuffix(usage, "]"), "...") {
		return exit.Usage.Errorf("unexpected argument %q (see %s --help)", args[len(words)], where)
	}
	return nil
}
