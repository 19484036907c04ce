package data

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow/go/v17/parquet"
	"github.com/apache/arrow/go/v17/parquet/file"

	"titan/libtitan/arrowfile"
)

// readParquet takes each row of a Parquet file as a document: a list column input_ids and perhaps labels, or a string
// column text. It reads columns by hand; pqarrow would bring in gRPC.
func readParquet(path string, emit func(document) error) error {
	f, size, err := openSized(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t := &table{path: path, emit: emit}
	return t.read(func() error {
		r, err := file.NewParquetReader(f, file.WithReadProps(parquet.NewReaderProperties(arrowfile.Allocator(size))))
		if err != nil {
			return err
		}
		for g := range r.NumRowGroups() {
			next, err := groupReader(r, g)
			if err != nil {
				return err
			}
			if err := t.rows(r.RowGroup(g).NumRows(), func(int) (document, error) { return next() }); err != nil {
				return err
			}
		}
		return nil
	})
}

// groupReader gives a function that reads the rows of a row group, one after the other.
func groupReader(r *file.Reader, group int) (func() (document, error), error) {
	rg := r.RowGroup(group)
	column := func(name string) (file.ColumnChunkReader, error) {
		schema := r.MetaData().Schema
		for i := range schema.NumColumns() {
			if path := schema.Column(i).Path(); path == name || strings.HasPrefix(path, name+".") {
				return rg.Column(i)
			}
		}
		return nil, nil
	}
	ids, err := column("input_ids")
	if err != nil {
		return nil, err
	}
	if ids == nil {
		text, err := column("text")
		if err != nil {
			return nil, err
		}
		return textRows(text)
	}
	nextIDs, err := listRows(ids)
	if err != nil {
		return nil, fmt.Errorf("column input_ids: %w", err)
	}
	labels, err := column("labels")
	if err != nil {
		return nil, err
	}
	nextLabels := func() ([]int32, error) { return nil, nil }
	if labels != nil {
		if nextLabels, err = listRows(labels); err != nil {
			return nil, fmt.Errorf("column labels: %w", err)
		}
	}
	return func() (d document, err error) {
		if d.ids, err = nextIDs(); err != nil {
			return d, fmt.Errorf("input_ids: %w", err)
		}
		if d.labels, err = nextLabels(); err != nil {
			return d, fmt.Errorf("labels: %w", err)
		}
		return d, nil
	}, nil
}

// textRows reads a column of strings.
func textRows(c file.ColumnChunkReader) (func() (document, error), error) {
	if c == nil {
		return nil, errNoColumn
	}
	values, ok := c.(*file.ByteArrayColumnChunkReader)
	if !ok || c.Descriptor().MaxRepetitionLevel() != 0 {
		return nil, fmt.Errorf("column text has type %s, not string", c.Descriptor())
	}
	entries := newCursor(c, values.ReadBatch)
	return func() (document, error) {
		value, kind, err := entries.next()
		if err == nil && kind == null {
			err = errNull
		}
		return document{text: append([]byte(nil), value...)}, err // not the page that the value lies in
	}, nil
}

// listRows reads a column of lists of integers.
func listRows(c file.ColumnChunkReader) (func() ([]int32, error), error) {
	if c.Descriptor().MaxRepetitionLevel() != 1 {
		return nil, errors.New("not a list")
	}
	switch c := c.(type) {
	case *file.Int32ColumnChunkReader:
		return lists(newCursor(c, c.ReadBatch)), nil
	case *file.Int64ColumnChunkReader:
		return lists(newCursor(c, c.ReadBatch)), nil
	}
	return nil, fmt.Errorf("a list of %s, not of integers", c.Descriptor().PhysicalType())
}

// lists joins entries into rows: an entry of repetition level 0 starts one.
func lists[T int32 | int64](entries *cursor[T]) func() ([]int32, error) {
	return func() ([]int32, error) {
		ids := []int32{}
		for first := true; ; first = false {
			more, err := entries.more()
			switch {
			case err != nil:
				return nil, err
			case first && !more:
				return nil, errFewRows
			case !first && (!more || entries.startsRow()):
				return ids, nil
			}
			value, kind, err := entries.next()
			switch {
			case err != nil:
				return nil, err
			case kind == null || kind == present && T(int32(value)) != value:
				return nil, fmt.Errorf("element %d is null or not a token id", len(ids))
			case kind == present:
				ids = append(ids, int32(value))
			}
		}
	}
}

var errFewRows = errors.New("the column has fewer rows than the file says")

// cursor walks a column chunk entry by entry. Levels are those of Dremel: an entry of the highest definition level
// has a value, one of repetition level 0 starts a row.
type cursor[T any] struct {
	column    file.ColumnChunkReader
	read      func(n int64, values []T, def, rep []int16) (levels int64, numValues int, err error)
	maxDef    int16
	emptyDef  int16 // definition level of an empty list; -1 where there are no lists
	values    []T
	def, rep  []int16
	nextLevel int // in def and rep
	nextValue int // in values
}

// kind is what an entry is.
type kind int

const (
	present kind = iota
	null
	emptyList
)

const entriesAtOnce = 1024

func newCursor[T any](c file.ColumnChunkReader, read func(int64, []T, []int16, []int16) (int64, int, error)) *cursor[T] {
	d := c.Descriptor()
	cur := &cursor[T]{column: c, read: read, maxDef: d.MaxDefinitionLevel(), emptyDef: -1}
	if d.MaxRepetitionLevel() == 1 {
		cur.emptyDef = cur.maxDef - 1
		for node := d.SchemaNode(); node != nil && node.RepetitionType() != parquet.Repetitions.Repeated; node = node.Parent() {
			if node.RepetitionType() == parquet.Repetitions.Optional {
				cur.emptyDef--
			}
		}
	}
	return cur
}

// more reports whether an entry is left, and reads some where none is at hand.
func (c *cursor[T]) more() (bool, error) {
	if c.nextLevel < len(c.def) {
		return true, nil
	}
	if !c.column.HasNext() {
		return false, c.column.Err()
	}
	c.values, c.def, c.rep = make([]T, entriesAtOnce), make([]int16, entriesAtOnce), make([]int16, entriesAtOnce)
	levels, numValues, err := c.read(entriesAtOnce, c.values, c.def, c.rep)
	if err != nil {
		return false, err
	}
	c.values, c.def, c.rep = c.values[:numValues], c.def[:levels], c.rep[:levels]
	c.nextLevel, c.nextValue = 0, 0
	return levels > 0, c.column.Err()
}

func (c *cursor[T]) startsRow() bool { return c.rep[c.nextLevel] == 0 }

// next takes an entry. Without definition levels every entry is a value.
func (c *cursor[T]) next() (value T, k kind, err error) {
	more, err := c.more()
	if err != nil {
		return value, null, err
	}
	if !more {
		return value, null, errFewRows
	}
	def := c.def[c.nextLevel]
	c.nextLevel++
	switch {
	case def == c.emptyDef:
		return value, emptyList, nil
	case def != c.maxDef:
		return value, null, nil
	case c.nextValue == len(c.values):
		return value, null, errors.New("the column has fewer values than levels")
	}
	value = c.values[c.nextValue]
	c.nextValue++
	return value, present, nil
}
