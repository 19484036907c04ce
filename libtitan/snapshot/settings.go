package snapshot

import (
	"math/bits"
	"strconv"

	"titan/libtitan/alloc"
)

// setDivisions sets roundup_power2_divisions from a threshold in MiB ("1", "2", "4", ...) on. Other keys are ignored.
func setDivisions(c *alloc.Config, mib string, divisions int64) {
	n, err := strconv.ParseUint(mib, 10, 32)
	at := bits.Len64(n) - 1
	if err == nil && at >= 0 && at < len(c.Divisions) && divisions >= 0 && divisions <= 1<<20 {
		c.Divisions[at] = int(divisions)
	}
}
