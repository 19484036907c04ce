package manifest

import (
	"fmt"
	"strings"
)

// HumanBytes writes a size for people: one decimal of the largest unit below it. [FormatBytes] loses nothing.
func HumanBytes(n int64) string {
	if -1024 < n && n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	size, units := float64(n)/1024, []string{"KiB", "MiB", "GiB", "TiB"}
	for ; (size >= 1024 || size <= -1024) && len(units) > 1; units = units[1:] {
		size /= 1024
	}
	return fmt.Sprintf("%.1f %s", size, units[0])
}

// Counted is n of what a regular noun names: 1 rank, 2 ranks, 2 batches.
func Counted(n int, noun string) string {
	switch {
	case n == 1:
		return "1 " + noun
	case strings.HasSuffix(noun, "ch"):
		noun += "e"
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
