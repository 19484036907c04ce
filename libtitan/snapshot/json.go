package snapshot

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// readJSON reads the snapshot's dict written as JSON: into the same values as a pickle's, event by event.
func readJSON(data string) (*Snapshot, error) {
	p := newPickled(data)
	j := &jsonReader{machine: machine{size: len(data), dict: p.dict}, text: data, escaped: &p.escaped}
	v, err := j.value(0)
	if j.blank(); err == nil && j.at < len(data) {
		err = errors.New("more after the end")
	}
	if err != nil {
		return nil, fmt.Errorf("JSON: offset %d: %w", j.at, err)
	}
	return p.read(v)
}

// jsonReader is a parser of JSON at one place of the text. encoding/json takes four times as long.
type jsonReader struct {
	machine // for its containers
	text    string
	at      int
	escaped *[]string
}

var errEnd = errors.New("unexpected end")

// blank skips spaces and returns the byte after them, 0 at the end.
func (j *jsonReader) blank() byte {
	for ; j.at < len(j.text); j.at++ {
		switch c := j.text[j.at]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

func (j *jsonReader) value(depth int) (value, error) {
	if depth > maxMarks {
		return value{}, fmt.Errorf("nested more than %d deep", maxMarks)
	}
	switch c := j.blank(); {
	case c == 0:
		return value{}, errEnd
	case c == '{':
		return j.object(depth)
	case c == '[':
		return j.array(depth)
	case c == '"':
		return j.str()
	case c == '-' || '0' <= c && c <= '9':
		return j.number()
	}
	for word, v := range map[string]value{"true": {kind: boolValue, n: 1}, "false": {kind: boolValue}, "null": {}} {
		if strings.HasPrefix(j.text[j.at:], word) {
			j.at += len(word)
			return v, nil
		}
	}
	return value{}, fmt.Errorf("%q begins no value", j.text[j.at])
}

// next steps over the comma between two elements, and reports false at the bracket that ends them.
func (j *jsonReader) next(first bool, end byte) (bool, error) {
	switch c := j.blank(); {
	case c == 0:
		return false, errEnd
	case c == end:
		j.at++
		return false, nil
	case first:
		return true, nil
	case c == ',':
		j.at++
		return true, nil
	}
	return false, fmt.Errorf("%q where %q or a comma should be", j.text[j.at], end)
}

func (j *jsonReader) object(depth int) (value, error) {
	n, err := j.newNode()
	if err != nil {
		return value{}, err
	}
	j.at++
	for {
		more, err := j.next(len(n.items) == 0, '}')
		if err != nil {
			return value{}, err
		}
		if !more {
			break
		}
		if j.blank() != '"' {
			return value{}, errors.New("a key should be here")
		}
		key, err := j.str()
		if err != nil {
			return value{}, err
		}
		if j.blank() != ':' {
			return value{}, errors.New("a colon should be here")
		}
		j.at++
		v, err := j.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		n.items = append(n.items, key, v)
	}
	return j.filled(value{kind: dictValue, node: n})
}

func (j *jsonReader) array(depth int) (value, error) {
	n, err := j.newNode()
	if err != nil {
		return value{}, err
	}
	j.at++
	for first := true; ; first = false {
		more, err := j.next(first, ']')
		if err != nil || !more {
			return value{kind: listValue, node: n}, err
		}
		v, err := j.value(depth + 1)
		if err != nil {
			return value{}, err
		}
		n.add(v)
	}
}

// str reads a string. One with escapes is kept outside the text.
func (j *jsonReader) str() (value, error) {
	start := j.at + 1
	for i := start; i < len(j.text); i++ {
		switch j.text[i] {
		case '\\':
			return j.escapedStr(start - 1)
		case '"':
			j.at = i + 1
			return textAt(start, i-start)
		}
	}
	return value{}, errEnd
}

func (j *jsonReader) escapedStr(start int) (value, error) {
	i := start + 1
	for ; i < len(j.text) && j.text[i] != '"'; i++ {
		if j.text[i] == '\\' {
			i++
		}
	}
	if i >= len(j.text) {
		return value{}, errEnd
	}
	var s string
	if err := json.Unmarshal([]byte(j.text[start:i+1]), &s); err != nil {
		return value{}, err
	}
	j.at = i + 1
	*j.escaped = append(*j.escaped, s)
	return value{kind: escapedValue, n: int64(len(*j.escaped) - 1)}, nil
}

func (j *jsonReader) number() (value, error) {
	start := j.at
	for j.at++; j.at < len(j.text) && strings.IndexByte("0123456789+-.eE", j.text[j.at]) >= 0; j.at++ {
	}
	digits := j.text[start:j.at]
	n, err := strconv.ParseInt(digits, 10, 64)
	if err == nil {
		return value{kind: intValue, n: n}, nil
	}
	f, wrong := strconv.ParseFloat(digits, 64)
	switch {
	case wrong != nil:
		return value{}, fmt.Errorf("%.30q is no number", digits)
	case f == float64(int64(f)) && f < 1<<53 && f > -1<<53: // 1e6
		return value{kind: intValue, n: int64(f)}, nil
	case errors.Is(err, strconv.ErrRange):
		return value{kind: wideValue}, nil
	}
	return value{kind: floatValue}, nil
}
