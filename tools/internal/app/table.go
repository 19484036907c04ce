package app

import (
	"io"
	"strconv"
	"text/tabwriter"
)

// Table lines up what is written to it, cells parted by tabs, in columns on w. Flush it at the end.
func Table(w io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(w, 0, 0, 2, ' ', 0) }

// Grouped is n with commas between thousands.
func Grouped(n int64) string {
	digits := strconv.FormatInt(n, 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}
