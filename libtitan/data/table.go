package data

import (
	"fmt"
	"os"

	"titan/libtitan/arrowfile"
	"titan/libtitan/exit"
)

// table is a file of rows, each of which is a document.
type table struct {
	path string
	emit func(document) error
	row  int   // that was read last, from 1
	err  error // emit's
}

// read runs a parser that gives rows. Its errors get the file's path and kind; those of emit have both.
func (t *table) read(parse func() error) error {
	err := arrowfile.Guard(parse)
	if err == nil || t.err != nil {
		return t.err
	}
	return exit.Input.Errorf("data: %s: %s", t.path, oneLine(err))
}

// rows emits the next n rows; next reads the i-th of them.
func (t *table) rows(n int64, next func(i int) (document, error)) error {
	for i := range int(n) {
		t.row++
		d, err := next(i)
		if err != nil {
			return fmt.Errorf("row %d: %w", t.row, err)
		}
		d.where = fmt.Sprintf("%s: row %d", t.path, t.row)
		if t.err = t.emit(d); t.err != nil {
			return t.err
		}
	}
	return nil
}

// openSized opens a file that is about to be parsed.
func openSized(path string) (*os.File, int64, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, exit.Input.Errorf("data: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return nil, 0, fmt.Errorf("data: %w", err)
	}
	return file, info.Size(), nil
}

// oneLine is the first line of an error, cut short: the Arrow module's hold stack traces.
func oneLine(err error) string {
	text := err.Error()
	for i, c := range text {
		if c == '\n' || i > 300 {
			return text[:i]
		}
	}
	return text
}
