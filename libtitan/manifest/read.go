package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
)

// Limits on what Read takes from a stranger. The manifest of llama3-405b over 126 stages is 30 KB.
const (
	maxBytes = 16 << 20
	maxDepth = 64
)

// section is a member of the document as it was read.
type section struct {
	name string
	raw  json.RawMessage
}

// Read reads one manifest, strictly: an unknown field is refused, with the nearest known one, and so are a
// field given twice, a value of the wrong type, and anything after the document. A section named x-... may hold
// anything. Errors are of type *Error, or the reader's own. What the values mean is for Validate.
func Read(r io.Reader) (*Manifest, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read manifest: %w", err)
	case len(data) > maxBytes:
		return nil, &Error{Why: fmt.Sprintf("is larger than %d MiB", maxBytes>>20)}
	case len(bytes.TrimSpace(data)) == 0:
		return nil, &Error{Why: "the input is empty: the tool before this one wrote nothing"}
	}
	d := newDecoder(data)
	m := &Manifest{}
	if err := d.document(m); err != nil {
		return nil, err
	}
	if m.Schema != SchemaName {
		return nil, &Error{Path: "schema", Why: fmt.Sprintf("want %q, got %.40q", SchemaName, m.Schema)}
	}
	return m, nil
}

// decoder walks JSON text and fills a value of the same shape.
type decoder struct {
	data []byte
	*json.Decoder
}

func newDecoder(data []byte) *decoder {
	d := &decoder{data, json.NewDecoder(bytes.NewReader(data))}
	d.UseNumber()
	return d
}

func (d *decoder) errorf(path, format string, args ...any) error {
	line := 1 + bytes.Count(d.data[:min(int(d.InputOffset()), len(d.data))], []byte("\n"))
	return &Error{Line: line, Path: path, Why: fmt.Sprintf(format, args...)}
}

// next is the next token; what is not JSON becomes an *Error.
func (d *decoder) next(path string) (json.Token, error) {
	t, err := d.Token()
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return nil, d.errorf(path, "ends in the middle: it was cut short")
	case err != nil:
		return nil, d.errorf(path, "is not JSON: %v", err)
	}
	return t, nil
}

// document fills m with the whole text and keeps each section's bytes.
func (d *decoder) document(m *Manifest) error {
	t, err := d.next("")
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return d.errorf("", "want one JSON object as meshplan writes it, got %s", kindOf(t))
	}
	v := reflect.ValueOf(m).Elem()
	err = d.members("", func(name string) error {
		start := d.InputOffset()
		field, known := fieldNamed(v, name)
		switch {
		case known:
			err = d.value(field, name)
		case strings.HasPrefix(name, "x-"):
			err = d.skip(name)
		default:
			err = d.unknown(v, "", name)
		}
		if err == nil && name != "schema" {
			raw := bytes.TrimLeft(d.data[start:d.InputOffset()], " \t\r\n:")
			m.read = append(m.read, section{name, bytes.Clone(raw)})
		}
		return err
	})
	if err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return d.errorf("", "something follows the document: want one JSON object")
	}
	return nil
}

// members calls each with the name of every member of the object whose brace was just read.
func (d *decoder) members(path string, each func(name string) error) error {
	seen := map[string]bool{}
	for d.More() {
		t, err := d.next(path)
		if err != nil {
			return err
		}
		name := t.(string) // the decoder gives strings alone as keys
		if seen[name] {
			return d.errorf(join(path, name), "given twice")
		}
		seen[name] = true
		if err := each(name); err != nil {
			return err
		}
	}
	_, err := d.next(path)
	return err
}

// value fills v with the next value.
func (d *decoder) value(v reflect.Value, path string) error {
	t, err := d.next(path)
	if err != nil {
		return err
	}
	if v.Kind() == reflect.Pointer {
		if t == nil {
			v.SetZero()
			return nil
		}
		v.Set(reflect.New(v.Type().Elem()))
		v = v.Elem()
	}
	switch {
	case v.Kind() == reflect.Struct && t == json.Delim('{'):
		return d.members(path, func(name string) error {
			field, known := fieldNamed(v, name)
			if !known {
				return d.unknown(v, path, name)
			}
			return d.value(field, join(path, name))
		})
	case v.Kind() == reflect.Slice && t == json.Delim('['):
		return d.list(v, path)
	}
	if why := assign(v, t); why != "" {
		return d.errorf(path, "%s", why)
	}
	return nil
}

func (d *decoder) list(v reflect.Value, path string) error {
	list := reflect.MakeSlice(v.Type(), 0, 0)
	for d.More() {
		item := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(item, fmt.Sprintf("%s.%d", path, list.Len())); err != nil {
			return err
		}
		list = reflect.Append(list, item)
	}
	v.Set(list)
	_, err := d.next(path)
	return err
}

// assign puts the scalar t into v, or says what is wrong.
func assign(v reflect.Value, t json.Token) (why string) {
	switch x := t.(type) {
	case string:
		if v.Kind() == reflect.String {
			v.SetString(x)
			return ""
		}
	case bool:
		if v.Kind() == reflect.Bool {
			v.SetBool(x)
			return ""
		}
	case json.Number:
		if v.CanInt() || v.CanUint() || v.CanFloat() {
			return assignNumber(v, x)
		}
	}
	return fmt.Sprintf("want %s, got %s", kindWanted(v), kindOf(t))
}

func assignNumber(v reflect.Value, n json.Number) (why string) {
	// encoding/json knows the ranges; what it refuses is not a number of v's kind.
	if json.Unmarshal([]byte(n), v.Addr().Interface()) != nil || v.CanFloat() && math.IsInf(v.Float(), 0) {
		return fmt.Sprintf("want %s, got %.40s", kindWanted(v), n)
	}
	return ""
}

// skip passes over one value of any shape, held to the same rules.
func (d *decoder) skip(path string) error {
	if strings.Count(path, ".") > maxDepth {
		return d.errorf("", "is nested deeper than %d levels", maxDepth)
	}
	t, err := d.next(path)
	if err != nil {
		return err
	}
	switch t {
	case json.Delim('{'):
		return d.members(path, func(name string) error { return d.skip(path + "." + name) })
	case json.Delim('['):
		for d.More() {
			if err := d.skip(path + ".0"); err != nil {
				return err
			}
		}
		_, err = d.next(path)
	}
	return err
}

func (d *decoder) unknown(v reflect.Value, path, name string) error {
	what := "unknown field"
	if path == "" {
		what = "unknown section (its name may start with x-)"
	}
	return d.errorf(join(path, name), "%s%s", what, meant(path, name, v))
}

// meant names the field of v nearest to name, or lists them all where none is near.
func meant(path, name string, v reflect.Value) string {
	names := fieldNames(v.Type())
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf(": did you mean %s?", join(path, near))
	}
	return ": not among " + strings.Join(names, ", ")
}

// fieldNamed finds the field of the struct v whose JSON name is name, in this very spelling.
func fieldNamed(v reflect.Value, name string) (reflect.Value, bool) {
	for i := range v.NumField() {
		if f := v.Type().Field(i); f.IsExported() && jsonName(f) == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

func fieldNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() {
			names = append(names, jsonName(f))
		}
	}
	return names
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func kindOf(t json.Token) string {
	switch x := t.(type) {
	case nil:
		return "null"
	case string:
		return fmt.Sprintf("%.40q", x)
	case json.Delim:
		if x == '[' {
			return "a list"
		}
		return "an object"
	}
	return fmt.Sprintf("%.40v", t)
}

func kindWanted(v reflect.Value) string {
	switch {
	case v.CanInt():
		return "a whole number"
	case v.CanUint():
		return "a whole number from 0"
	case v.CanFloat():
		return "a number"
	}
	return map[reflect.Kind]string{reflect.Bool: "true or false", reflect.String: "a string", reflect.Slice: "a list", reflect.Struct: "an object"}[v.Kind()]
}
