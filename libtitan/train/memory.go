package train

import (
	"os"
	"strconv"
	"strings"
)

// peakMemory is the most memory that this process has held, and its share of the machine's; zeros where the
// system does not say.
func peakMemory() (bytes int64, share float64) {
	bytes = procField("/proc/self/status", "VmHWM:")
	if total := procField("/proc/meminfo", "MemTotal:"); total > 0 {
		share = float64(bytes) / float64(total)
	}
	return bytes, share
}

// procField reads a line "name: N kB".
func procField(path, name string) int64 {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == name {
			kb, _ := strconv.ParseInt(f[1], 10, 64)
			return kb << 10
		}
	}
	return 0
}
