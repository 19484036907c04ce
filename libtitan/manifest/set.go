package manifest

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"
)

// Set applies assignments of the form section.field=value, in order. The schema types the value: a string stands
// as it is, a number may be 4k or 1_000_000, a list is JSON or words with commas between, null empties what may
// be empty. A list's items are numbered: pipeline.stages.0.pp_rank. Then what follows from other fields is
// derived anew, unless an assignment names it. Errors are of type *Error and name the nearest field.
func Set(m *Manifest, assignments ...string) error {
	keep := map[string]bool{}
	for _, a := range assignments {
		path, text, ok := strings.Cut(a, "=")
		if !ok {
			return &Error{Path: path, Why: "want section.field=value"}
		}
		field, err := lookup(reflect.ValueOf(m).Elem(), path)
		if err != nil {
			return err
		}
		if err := setText(field, path, text); err != nil {
			return err
		}
		keep[path] = true
	}
	if len(assignments) > 0 {
		m.derive(keep)
	}
	return nil
}

// lookup finds the value at path below v; absent sections on the way are made.
func lookup(v reflect.Value, path string) (reflect.Value, error) {
	done := ""
	for _, name := range strings.Split(path, ".") {
		if v.Kind() == reflect.Pointer {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
		switch v.Kind() {
		case reflect.Struct:
			field, ok := fieldNamed(v, name)
			if !ok {
				return v, &Error{Path: path, Why: "unknown field" + meant(done, name, v)}
			}
			v = field
		case reflect.Slice:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= v.Len() {
				return v, &Error{Path: path, Why: fmt.Sprintf("%s has %d items, numbered from 0; %q is none of them", done, v.Len(), name)}
			}
			v = v.Index(i)
		default:
			return v, &Error{Path: path, Why: fmt.Sprintf("%s holds %s, it has no fields", done, kindWanted(v))}
		}
		done = join(done, name)
	}
	return v, nil
}

// setText parses text as v's type.
func setText(v reflect.Value, path, text string) error {
	bare := v.Kind()
	if bare == reflect.Pointer {
		bare = v.Type().Elem().Kind()
	}
	switch bare {
	case reflect.String:
		if !strings.HasPrefix(text, `"`) {
			v.SetString(text)
			return nil
		}
	case reflect.Int, reflect.Int64, reflect.Uint64:
		if n, err := ParseCount(text); err == nil {
			text = strconv.FormatInt(n, 10)
		}
	case reflect.Slice:
		if text == "" {
			text = "[]"
		} else if !strings.HasPrefix(text, "[") && v.Type().Elem().Kind() == reflect.String {
			words, _ := json.Marshal(strings.Split(text, ","))
			text = string(words)
		}
	}
	d := newDecoder([]byte(text))
	err := d.value(v, path)
	if err == nil && d.More() {
		err = d.errorf(path, "something follows the value: %.40q", text)
	}
	if e, ok := err.(*Error); ok {
		e.Line = 0
		if strings.HasPrefix(e.Why, "is not JSON") || strings.HasPrefix(e.Why, "ends in") {
			e.Why = fmt.Sprintf("want %s, got %.40q", kindWanted(reflect.Zero(elem(v.Type()))), text)
		}
	}
	return err
}

func elem(t reflect.Type) reflect.Type {
	if t.Kind() == reflect.Pointer {
		return t.Elem()
	}
	return t
}
