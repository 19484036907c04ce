package checkpoint

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Respell writes a checkpoint again, in its format and layout, with its parameters' names in another spelling. Those of
// Hugging Face's form stay.
func Respell(ctx context.Context, in, out string, to Spelling, o MoveOptions) error {
	v, err := openView(in, &o)
	if err != nil {
		return err
	}
	defer v.Close()
	if !v.namedByHF() { // their lm_head.weight has a name of ours, but is read beside their others alone
		n := v.rename(func(fqn string) string { return respell(fqn, to) })
		o.note("%s spelt anew", manifest.Counted(n, "name"))
	}
	return v.writeNoting(ctx, target{path: out, format: v.Format()}, &o)
}

// Rename writes a checkpoint again, in its format and layout, with other names: of whole items, or of parameters, whose
// optimizer state follows.
func Rename(ctx context.Context, in, out string, names map[string]string, o MoveOptions) error {
	v, err := openView(in, &o)
	if err != nil {
		return err
	}
	defer v.Close()
	used := map[string]bool{}
	n := v.rename(func(fqn string) string { return mapped(fqn, names, used) })
	if err := unused(v, names, used); err != nil {
		return err
	}
	o.note("%s renamed", manifest.Counted(n, "item"))
	return v.write(ctx, target{path: out, format: v.Format()}, &o)
}

// mapped is an item's new name: that of the whole, or of the parameter within it.
func mapped(fqn string, names map[string]string, used map[string]bool) string {
	if to, ok := names[fqn]; ok {
		used[fqn] = true
		return to
	}
	prefix, param := splitPrefix(fqn)
	for end := len(param); end > 0; end = strings.LastIndexByte(param[:end], '.') {
		if to, ok := names[param[:end]]; ok && (prefix != "" || end == len(param)) {
			used[param[:end]] = true
			return prefix + to + param[end:]
		}
	}
	return fqn
}

// unused refuses a map with names that the checkpoint does not have.
func unused(v *view, names map[string]string, used map[string]bool) error {
	var have []string
	for _, it := range v.Source.Items() {
		have = append(have, it.FQN)
	}
	for name := range names {
		if used[name] {
			continue
		}
		if near := manifest.Nearest(name, have); near != "" {
			return exit.Input.Errorf("checkpoint %s: no item is called %s: did you mean %s?", v.Name(), name, near)
		}
		return exit.Input.Errorf("checkpoint %s: no item is called %s", v.Name(), name)
	}
	return nil
}

const maxNames = 64 << 20 // bytes of a file of names

// ReadNames reads a map of old to new names: a JSON object of strings, or a line "OLD NEW" for each, with # before
// comments.
func ReadNames(r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxNames+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxNames {
		return nil, exit.Input.Errorf("a map of names of more than %d bytes", maxNames)
	}
	names := map[string]string{}
	if b = bytes.TrimSpace(b); bytes.HasPrefix(b, []byte("{")) {
		if err := json.Unmarshal(b, &names); err != nil {
			return nil, exit.Input.Errorf("no JSON object of strings: %v", err)
		}
	} else if err := readPairs(b, names); err != nil {
		return nil, err
	}
	for old, now := range names {
		if old == "" || now == "" {
			return nil, exit.Input.Errorf("%q: %q: a name is empty", old, now)
		}
	}
	if len(names) == 0 {
		return nil, exit.Input.Errorf("no names in it")
	}
	return names, nil
}

func readPairs(b []byte, names map[string]string) error {
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, len(b)+1)
	for n := 1; lines.Scan(); n++ {
		text, _, _ := strings.Cut(lines.Text(), "#")
		switch f := strings.Fields(text); {
		case len(f) == 0:
		case len(f) != 2:
			return exit.Input.Errorf("line %d: %d words where OLD NEW are two", n, len(f))
		case names[f[0]] != "":
			return exit.Input.Errorf("line %d: %s stands twice", n, f[0])
		default:
			names[f[0]] = f[1]
		}
	}
	return lines.Err()
}
