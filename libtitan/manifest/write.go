package manifest

import (
	"bytes"
	"encoding/json"
	"io"
	"reflect"
	"strings"
)

// Write writes m: sections in the order of the schema, then those named x-... as they came, two spaces of
// indent, a final newline. A section that was read and has not changed keeps its bytes, whatever their form.
func Write(w io.Writer, m *Manifest) error {
	var b bytes.Buffer
	b.WriteString("{\n  \"schema\": ")
	b.Write(encode(m.Schema))
	member := func(name string, raw []byte) {
		b.WriteString(",\n  ")
		b.Write(encode(name))
		b.WriteString(": ")
		b.Write(raw)
	}
	v := reflect.ValueOf(m).Elem()
	for i := range v.NumField() {
		field := v.Field(i)
		if field.Kind() != reflect.Pointer || field.IsNil() {
			continue
		}
		name := jsonName(v.Type().Field(i))
		if raw := m.unchanged(name, field); raw != nil {
			member(name, raw)
		} else {
			member(name, encode(full(field).Interface()))
		}
	}
	for _, s := range m.read {
		if strings.HasPrefix(s.name, "x-") {
			member(s.name, s.raw)
		}
	}
	b.WriteString("\n}\n")
	_, err := w.Write(b.Bytes())
	return err
}

// unchanged is the text that field was read from, or nil where it now holds something else.
func (m *Manifest) unchanged(name string, field reflect.Value) []byte {
	for _, s := range m.read {
		if s.name != name {
			continue
		}
		was := reflect.New(field.Type())
		if newDecoder(s.raw).value(was.Elem(), name) == nil && reflect.DeepEqual(was.Elem().Interface(), field.Interface()) {
			return s.raw
		}
	}
	return nil
}

// full is a copy of v in which a list without items is an empty list, never null.
func full(v reflect.Value) reflect.Value {
	out := reflect.New(v.Type()).Elem()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			out.Set(reflect.New(v.Type().Elem()))
			out.Elem().Set(full(v.Elem()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			out.Field(i).Set(full(v.Field(i)))
		}
	case reflect.Slice:
		out.Set(reflect.MakeSlice(v.Type(), v.Len(), v.Len()))
		for i := range v.Len() {
			out.Index(i).Set(full(v.Index(i)))
		}
	default:
		out.Set(v)
	}
	return out
}

// encode is v as it stands in a manifest, one level deep. The types of a manifest always encode; a NaN, which
// Validate refuses, becomes null.
func encode(v any) []byte {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("  ", "  ")
	if e.Encode(v) != nil {
		return []byte("null")
	}
	return bytes.TrimRight(b.Bytes(), "\n")
}
