package manifest

import (
	"fmt"
	"strings"
)

// exitBadInput is exit.Input. exit stands beside this package, so its code is repeated.
const exitBadInput = 3

// Error says what is wrong with a manifest, and where.
type Error struct {
	Line int    // of the JSON text, from 1; 0 when there is no text
	Path string // section.field; "" for the whole document
	Why  string
}

func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("manifest: ")
	if e.Line > 0 {
		fmt.Fprintf(&b, "line %d: ", e.Line)
	}
	if e.Path != "" {
		b.WriteString(e.Path + ": ")
	}
	return b.String() + e.Why
}

// ExitCode is that of bad input.
func (e *Error) ExitCode() int { return exitBadInput }

// Nearest is the one of known that word was most likely meant to be, or "" where none is close: about a third of
// word's letters, and at least one, may differ.
func Nearest(word string, known []string) string {
	best, least := "", max(1, (len(word)+1)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(word), strings.ToLower(k)); d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance of a and b in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d++
			}
			diagonal = row[j+1]
			row[j+1] = min(d, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
