package checkpoint

import (
	"regexp"
	"slices"
	"strings"
)

// plainWord is what a shell takes as one word, unquoted.
var plainWord = regexp.MustCompile(`^[\w@%+=:,./][\w@%+=:,./-]*$`)

// shellWord is a path as it stands in a command for a shell.
func shellWord(path string) string {
	if plainWord.MatchString(path) {
		return path
	}
	if strings.HasPrefix(path, "-") {
		path = "./" + path
	}
	return "'" + strings.ReplaceAll(path, "'", `'\''`) + "'"
}

// wrapper reports whether a part of a name comes from torch.compile, activation checkpointing or DDP.
func wrapper(part string) bool {
	return part == "_orig_mod" || part == "_checkpoint_wrapped_module" || part == "module"
}

// spell cuts a name into parts, in our spelling: torchtitan's output.weight is lm_head.weight here, and its newest
// attention.qkv_linear.wq is attention.wq. Wrapper parts stay.
func spell(fqn string) []string {
	parts := strings.Split(fqn, ".")
	out := parts[:0:0]
	for i, p := range parts {
		next := ""
		if k := slices.IndexFunc(parts[i+1:], func(s string) bool { return !wrapper(s) }); k >= 0 {
			next = parts[i+1+k]
		}
		switch {
		case p == "output" && next == "weight":
			p = "lm_head"
		case p == "qkv_linear" && (next == "wq" || next == "wk" || next == "wv"):
			continue
		}
		out = append(out, p)
	}
	return out
}

// plainName is a name in our spelling without wrapper parts.
func plainName(fqn string) string {
	return strings.Join(slices.DeleteFunc(spell(fqn), wrapper), ".")
}

// unwraps reports whether stored becomes wanted when wrapper parts of it go. A model may have a real child called
// module, so wanted may keep some.
func unwraps(stored, wanted string) bool {
	want := spell(wanted)
	for _, p := range spell(stored) {
		switch {
		case len(want) > 0 && p == want[0]:
			want = want[1:]
		case !wrapper(p):
			return false
		}
	}
	return len(want) == 0
}
