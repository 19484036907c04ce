package data

import (
	"errors"
	"fmt"
	"math"

	"github.com/apache/arrow/go/v17/arrow"
	"github.com/apache/arrow/go/v17/arrow/array"

	"titan/libtitan/arrowfile"
)

// readArrow takes each row of an Arrow IPC stream, as the datasets library writes it, as a document: a list column
// input_ids and perhaps labels, or a string column text.
func readArrow(path string, emit func(document) error) error {
	file, size, err := openSized(path)
	if err != nil {
		return err
	}
	defer file.Close()
	t := &table{path: path, emit: emit}
	return t.read(func() error {
		r, err := arrowfile.NewReader(file, size)
		if err != nil {
			return err
		}
		for r.Next() {
			record := r.Record()
			next, err := recordReader(record)
			if err != nil {
				return err
			}
			if err := t.rows(record.NumRows(), next); err != nil {
				return err
			}
		}
		return r.Err()
	})
}

// recordReader gives a function that reads row i of a record.
func recordReader(record arrow.Record) (func(i int) (document, error), error) {
	column := func(name string) arrow.Array {
		for i, f := range record.Schema().Fields() {
			if f.Name == name {
				return record.Column(i)
			}
		}
		return nil
	}
	if c := column("input_ids"); c != nil {
		ids, err := listReader(c)
		if err != nil {
			return nil, fmt.Errorf("column input_ids: %w", err)
		}
		labels := func(int) ([]int32, error) { return nil, nil }
		if c := column("labels"); c != nil {
			if labels, err = listReader(c); err != nil {
				return nil, fmt.Errorf("column labels: %w", err)
			}
		}
		return func(i int) (d document, err error) {
			if d.ids, err = ids(i); err != nil {
				return d, fmt.Errorf("input_ids: %w", err)
			}
			if d.labels, err = labels(i); err != nil {
				return d, fmt.Errorf("labels: %w", err)
			}
			return d, nil
		}, nil
	}
	c := column("text")
	text, ok := c.(interface{ Value(int) string }) // String and LargeString
	if !ok {
		if c != nil {
			return nil, fmt.Errorf("column text has type %s, not string", c.DataType())
		}
		return nil, errNoColumn
	}
	return func(i int) (document, error) {
		if c.IsNull(i) {
			return document{}, errNull
		}
		return document{text: []byte(text.Value(i))}, nil
	}, nil
}

var (
	errNull     = errors.New("a null")
	errNoColumn = errors.New("neither a text nor an input_ids column")
)

// listReader gives a function that reads list i of a column of integers.
func listReader(c arrow.Array) (func(i int) ([]int32, error), error) {
	list, ok := c.(array.ListLike)
	if !ok {
		return nil, fmt.Errorf("type %s, not a list", c.DataType())
	}
	value, err := integerReader(list.ListValues())
	if err != nil {
		return nil, err
	}
	values := list.ListValues()
	return func(i int) ([]int32, error) {
		if c.IsNull(i) {
			return nil, errNull
		}
		start, end := list.ValueOffsets(i)
		if start < 0 || end < start || end > int64(values.Len()) {
			return nil, errors.New("offsets outside the column")
		}
		ids := make([]int32, 0, end-start)
		for k := int(start); k < int(end); k++ {
			v := value(k)
			if values.IsNull(k) || v != int64(int32(v)) {
				return nil, fmt.Errorf("element %d is null or not a token id", k-int(start))
			}
			ids = append(ids, int32(v))
		}
		return ids, nil
	}, nil
}

// integerReader gives a function that widens element i of an array of integers.
func integerReader(values arrow.Array) (func(i int) int64, error) {
	switch v := values.(type) {
	case *array.Int8:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Int16:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Int32:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Int64:
		return v.Value, nil
	case *array.Uint8:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Uint16:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Uint32:
		return func(i int) int64 { return int64(v.Value(i)) }, nil
	case *array.Uint64:
		return func(i int) int64 { return int64(min(v.Value(i), math.MaxInt64)) }, nil
	}
	return nil, fmt.Errorf("a list of %s, not of integers", values.DataType())
}
