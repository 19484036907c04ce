package manifest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"math"
	"reflect"
	"strconv"
	"strings"

	"github.com/invopop/jsonschema"
)

// source holds the comments that document each field, once.
//
//go:embed manifest.go
var source string

// Schema is the JSON Schema (draft 2020-12) of a manifest: its fields, what they mean, their types, ranges and
// choices. The rules between fields are Validate's alone.
func Schema() ([]byte, error) {
	comments, err := fieldComments()
	if err != nil {
		return nil, err
	}
	r := jsonschema.Reflector{Anonymous: true, DoNotReference: true, LookupComment: func(t reflect.Type, field string) string {
		if c := comments[t.Name()+"."+field]; c != "" || field == "" {
			return c
		}
		f, _ := t.FieldByName(field) // a section: its type says what it is
		return comments[elem(f.Type).Name()+"."]
	}}
	root := r.Reflect(&Manifest{})
	root.Title = SchemaName
	root.PatternProperties = map[string]*jsonschema.Schema{"^x-": jsonschema.TrueSchema}
	root.Required = append(root.Required, required...)
	if s := property(root, "schema"); s != nil {
		s.Const = SchemaName
	}
	for _, l := range limits {
		s := property(root, l.path)
		if s == nil {
			return nil, fmt.Errorf("limit of an unknown field %s", l.path)
		}
		if l.min == math.SmallestNonzeroFloat64 {
			s.ExclusiveMinimum = "0"
		} else {
			s.Minimum = decimal(l.min)
		}
		if l.max != math.MaxFloat64 {
			s.Maximum = decimal(l.max)
		}
	}
	for _, c := range choices {
		s := property(root, c.path)
		if s == nil {
			return nil, fmt.Errorf("choices of an unknown field %s", c.path)
		}
		if s.Items != nil {
			s = s.Items
		}
		for _, word := range c.words {
			s.Enum = append(s.Enum, word)
		}
	}
	text, err := json.MarshalIndent(root, "", "  ")
	return append(text, '\n'), err
}

func decimal(x float64) json.Number { return json.Number(strconv.FormatFloat(x, 'f', -1, 64)) }

// property is the schema of the field at path, nil where there is none. Of a field that may be null it is the
// other half.
func property(s *jsonschema.Schema, path string) *jsonschema.Schema {
	for _, name := range strings.Split(path, ".") {
		if s.OneOf != nil {
			s = s.OneOf[0]
		}
		next, ok := s.Properties.Get(name)
		if !ok {
			return nil
		}
		s = next
	}
	if s.OneOf != nil {
		s = s.OneOf[0]
	}
	return s
}

// fieldComments maps Type.Field to its comment in source, and "Type." to the type's.
func fieldComments() (map[string]string, error) {
	file, err := parser.ParseFile(token.NewFileSet(), "manifest.go", source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	comments := map[string]string{}
	for _, d := range file.Decls {
		decl, ok := d.(*ast.GenDecl)
		if !ok || decl.Tok != token.TYPE {
			continue
		}
		for _, s := range decl.Specs {
			spec := s.(*ast.TypeSpec)
			comments[spec.Name.Name+"."] = oneLine(decl.Doc)
			body, ok := spec.Type.(*ast.StructType)
			if !ok {
				continue
			}
			for _, f := range body.Fields.List {
				for _, name := range f.Names {
					comments[spec.Name.Name+"."+name.Name] = oneLine(f.Comment)
				}
			}
		}
	}
	return comments, nil
}

func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }
