package manifest

import (
	"fmt"
	"slices"
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
		b.WriteString(plain(e.Path) + ": ")
	}
	return b.String() + e.Why
}

// plain is a name as it stands, or quoted and cut where a stranger chose one that would not fit a line.
func plain(name string) string {
	if q := fmt.Sprintf("%.80q", name); q != `"`+name+`"` {
		return q
	}
	return name
}

// ExitCode is that of bad input.
func (e *Error) ExitCode() int { return exitBadInput }

// Nearest is the one of known that word was most likely meant to be, or "" where none is close: about a third of
// word's letters, and at least one, may differ. Of several as close it is the one with the longest common beginning, then
// the one whose next letter is nearest: llama3-8b for llama3-9b.
func Nearest(word string, known []string) string {
	if len(word) > 100 {
		return ""
	}
	word = strings.ToLower(word)
	best, least := "", []int{max(1, len(word)/3) + 1}
	for _, k := range known {
		same, apart := beginning(word, strings.ToLower(k))
		if d := []int{distance(word, strings.ToLower(k)), -same, apart}; slices.Compare(d, least) < 0 {
			best, least = k, d
		}
	}
	return best
}

// beginning is how many bytes a and b begin with in common, and how far apart the next ones are.
func beginning(a, b string) (same, apart int) {
	for same < min(len(a), len(b)) && a[same] == b[same] {
		same++
	}
	if same == min(len(a), len(b)) {
		return same, 256
	}
	return same, max(int(a[same])-int(b[same]), int(b[same])-int(a[same]))
}

// distance is the number of bytes to put in, take out, change, or swap with a neighbour to make b of a
// (optimal string alignment).
func distance(a, b string) int {
	var last []int // the row before the one before
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := make([]int, len(b)+1)
		next[0] = i + 1
		for j := range len(b) {
			d := row[j]
			if a[i] != b[j] {
				d++
			}
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				d = min(d, last[j-1]+1)
			}
			next[j+1] = min(d, row[j+1]+1, next[j]+1)
		}
		last, row = row, next
	}
	return row[len(b)]
}
