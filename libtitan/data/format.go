package data

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"titan/libtitan/exit"
)

// format is a kind of file. read calls emit for each document in order and stops at the first error, which says
// where in the file it is.
type format struct {
	extensions []string
	table      bool // a file of the datasets library, in a folder beside descriptions of it
	read       func(path string, emit func(document) error) error
}

func formats() []format {
	return []format{
		{[]string{".jsonl", ".json", ".ndjson"}, false, readJSONL},
		{[]string{".arrow"}, true, readArrow},
		{[]string{".parquet"}, true, readParquet},
		{nil, false, readText}, // all others
	}
}

func formatOf(path string) format {
	all := formats()
	extension := strings.ToLower(filepath.Ext(path))
	i := slices.IndexFunc(all, func(f format) bool { return f.extensions == nil || slices.Contains(f.extensions, extension) })
	return all[i]
}

func isTable(path string) bool { return formatOf(path).table }

func isText(s source) bool { return formatOf(s.path).extensions == nil }

func allText(files []source) bool {
	return !slices.ContainsFunc(files, func(s source) bool { return !isText(s) })
}

// readText takes a file as one document.
func readText(path string, emit func(document) error) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return exit.Input.Errorf("data: %w", err)
	}
	return emit(document{text: text, where: path})
}

// readJSONL takes each line as a document, an object with input_ids and perhaps labels, or with text.
// Empty lines are passed over.
func readJSONL(path string, emit func(document) error) error {
	file, err := os.Open(path)
	if err != nil {
		return exit.Input.Errorf("data: %w", err)
	}
	defer file.Close()
	lines := bufio.NewReaderSize(file, 1<<16)
	for number := 1; ; number++ {
		line, readErr := lines.ReadBytes('\n')
		if readErr != nil && readErr != io.EOF {
			return fmt.Errorf("data: %s: %w", path, readErr)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			d, err := parseLine(line)
			d.where = fmt.Sprintf("%s:%d", path, number)
			if err != nil {
				return exit.Input.Errorf("data: %s: %w", d.where, err)
			}
			if err := emit(d); err != nil {
				return err
			}
		}
		if readErr == io.EOF {
			return nil
		}
	}
}

// parseLine reads one object. Fields of other names are of no account.
func parseLine(line []byte) (document, error) {
	var object struct {
		Text   *string `json:"text"`
		IDs    []int32 `json:"input_ids"`
		Labels []int32 `json:"labels"`
	}
	if line[0] != '{' {
		return document{}, errors.New("not a JSON object (one a line is read)")
	}
	if err := json.Unmarshal(line, &object); err != nil {
		return document{}, err
	}
	switch {
	case object.IDs != nil:
		return document{ids: object.IDs, labels: object.Labels}, nil
	case object.Text != nil:
		return document{text: []byte(*object.Text)}, nil
	}
	return document{}, errors.New(`neither "text" nor "input_ids" in the object`)
}
