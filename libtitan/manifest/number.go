package manifest

import (
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// number is digits in groups, a fraction, a suffix, which may stand apart.
var number = regexp.MustCompile(`^(-?[0-9]+(?:_[0-9]+)*)(\.[0-9]+)?(?: ?([A-Za-z]+))?$`)

// countSuffixes are decimal, as SI has them; with an i they are binary.
var countSuffixes = map[string]float64{
	"": 1, "k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
}

// sizeSuffixes are binary when bare, as in dd and docker; KB, MB, GB are decimal.
var sizeSuffixes = map[string]float64{
	"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40, "kib": 1 << 10, "mib": 1 << 20,
	"gib": 1 << 30, "tib": 1 << 40, "ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40,
	"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12,
}

// ParseCount reads a whole number as people write it: 64, 1_000_000, 4k (4,000), 4Ki (4,096), -1.
func ParseCount(s string) (int64, error) {
	return parseNumber(s, countSuffixes, "a whole number such as 64, 1_000_000 or 4k")
}

// ParseBytes reads a size: 512KiB, 80GiB, 2g (2 GiB), 1.5GB (10^9), 4096.
func ParseBytes(s string) (int64, error) {
	n, err := parseNumber(s, sizeSuffixes, "a size such as 512KiB, 80GiB or 2g")
	if err == nil && n < 0 {
		err = fmt.Errorf("a size is not negative")
	}
	return n, err
}

func parseNumber(s string, suffixes map[string]float64, want string) (int64, error) {
	parts := number.FindStringSubmatch(s)
	if parts == nil {
		return 0, fmt.Errorf("want %s", want)
	}
	scale, ok := suffixes[strings.ToLower(parts[3])]
	if !ok {
		return 0, fmt.Errorf("unknown suffix %q: want %s", parts[3], want)
	}
	whole := strings.ReplaceAll(parts[1], "_", "")
	if n, err := strconv.ParseInt(whole, 10, 64); err == nil && parts[2] == "" && scale == 1 {
		return n, nil
	}
	x, err := strconv.ParseFloat(whole+parts[2], 64)
	x *= scale
	if err != nil || x != math.Trunc(x) || math.Abs(x) > 1<<62 {
		return 0, fmt.Errorf("not a whole number that fits: want %s", want)
	}
	return int64(x), nil
}

// FormatBytes writes a size with the largest binary unit that divides it, as ParseBytes reads it.
func FormatBytes(n int64) string {
	for _, u := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := int64(sizeSuffixes[strings.ToLower(u)]); n >= size && n%size == 0 {
			return fmt.Sprintf("%d%s", n/size, u)
		}
	}
	return strconv.FormatInt(n, 10)
}
