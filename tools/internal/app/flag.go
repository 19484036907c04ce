package app

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
)

// value is a flag's place in an options struct. An empty show hides a default.
type value[T any] struct {
	dst   *T
	parse func(string) (T, error)
	show  func(T) string
}

func (v *value[T]) String() string    { return v.show(*v.dst) }
func (v *value[T]) Serialize() string { return v.show(*v.dst) }
func (v *value[T]) Set(s string) error {
	x, err := v.parse(s)
	if err == nil {
		*v.dst = x
	}
	return err
}

func flagOf[T any](v *value[T], usage string, names []string) cli.Flag {
	return &cli.GenericFlag{Name: names[0], Aliases: names[1:], Usage: usage, Value: v}
}

// Count is a flag for a whole number, as manifest.ParseCount reads it: 1_000_000, 4k. *dst is the default; 0 is
// not shown as one. A `word` in back quotes in usage names the value.
func Count[T int | int64 | uint64](dst *T, usage string, names ...string) cli.Flag {
	parse := func(s string) (T, error) {
		if u, err := strconv.ParseUint(s, 10, 64); err == nil && uint64(T(u)) == u && T(u) >= 0 {
			return T(u), nil
		}
		n, err := manifest.ParseCount(s)
		if err == nil && int64(T(n)) == n && (T(n) < 0) == (n < 0) {
			return T(n), nil
		}
		if err == nil {
			err = fmt.Errorf("out of range")
		}
		return 0, err
	}
	return flagOf(&value[T]{dst, parse, func(n T) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}}, usage, names)
}

// Natural is [Count] of threads and of things at a time, which none needs more than 65536 of.
func Natural(dst *int, usage string, names ...string) cli.Flag {
	return Within(dst, 0, 1<<16, usage, names...)
}

// AtLeast is [Count] of what is not below least.
func AtLeast(dst *int, least int64, usage string, names ...string) cli.Flag {
	return Within(dst, least, math.MaxInt32, usage, names...)
}

// Within is [Count] of what lies between least and most.
func Within(dst *int, least, most int64, usage string, names ...string) cli.Flag {
	parse := func(s string) (int, error) {
		n, err := manifest.ParseCount(s)
		switch {
		case err != nil:
		case n < least:
			err = fmt.Errorf("must be %d or more", least)
		case n > most:
			err = fmt.Errorf("must be at most %d", most)
		}
		return int(n), err
	}
	return flagOf(&value[int]{dst, parse, func(n int) string {
		if n == 0 {
			return ""
		}
		return fmt.Sprint(n)
	}}, usage, names)
}

// Bytes is a flag for a size, as manifest.ParseBytes reads it: 80GiB, 512KiB, 2g.
func Bytes(dst *int64, usage string, names ...string) cli.Flag {
	return flagOf(&value[int64]{dst, manifest.ParseBytes, func(n int64) string {
		if n == 0 {
			return ""
		}
		return manifest.FormatBytes(n)
	}}, usage, names)
}

// Number is a flag for a real number.
func Number(dst *float64, usage string, names ...string) cli.Flag {
	parse := func(s string) (float64, error) {
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || x-x != 0 { // a NaN or an infinity
			return 0, fmt.Errorf("not a finite number")
		}
		return x, nil
	}
	return flagOf(&value[float64]{dst, parse, func(x float64) string {
		if x == 0 {
			return ""
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	}}, usage, names)
}

// Text is a flag for a string.
func Text(dst *string, usage string, names ...string) cli.Flag {
	return flagOf(&value[string]{dst, func(s string) (string, error) { return s, nil }, func(s string) string { return s }}, usage, names)
}

// Folder is [Text] of a folder: - is no stream here, and not what a person would call one.
func Folder(dst *string, usage string, names ...string) cli.Flag {
	return flagOf(&value[string]{dst, parseFolder, func(s string) string { return s }}, usage, names)
}

func parseFolder(path string) (string, error) {
	if path == "-" {
		return "", fmt.Errorf("a folder is wanted, which is no stream (./- if it is called so)")
	}
	return path, nil
}

// Texts is a flag that may be given many times.
func Texts(dst *[]string, usage string, name string) cli.Flag {
	add := func(s string) ([]string, error) { return append(slices.Clip(*dst), s), nil }
	return flagOf(&value[[]string]{dst, add, func(s []string) string { return strings.Join(s, ",") }}, usage, []string{name})
}

// Choice is a flag for one of choices, in any case and with either of - and _; *dst gets the spelling that choices has.
func Choice(dst *string, choices []string, usage string, names ...string) cli.Flag {
	parse := func(s string) (string, error) {
		for _, c := range choices {
			if strings.EqualFold(dashed(c), dashed(s)) {
				return c, nil
			}
		}
		return "", fmt.Errorf("not among %s", strings.Join(choices, ", "))
	}
	v := &choice{value[string]{dst, parse, func(s string) string { return s }}, choices}
	return &cli.GenericFlag{Name: names[0], Aliases: names[1:], Usage: usage + ": " + strings.Join(choices, ", "), Value: v}
}

func dashed(word string) string { return strings.ReplaceAll(word, "_", "-") }

// DType is [Choice] of element types, in any of the spellings that dtype.Parse knows: bf16 is bfloat16.
func DType(dst *string, choices []string, usage string, names ...string) cli.Flag {
	f := Choice(dst, choices, usage, names...).(*cli.GenericFlag)
	v := f.Value.(*choice)
	among := v.parse
	v.parse = func(s string) (string, error) {
		if d, err := dtype.Parse(strings.ToLower(s)); err == nil {
			s = d.String()
		}
		return among(s)
	}
	return f
}

// choice keeps its choices for shell completion.
type choice struct {
	value[string]
	choices []string
}

// Switch is a flag without a value.
func Switch(dst *bool, usage string, names ...string) cli.Flag {
	return &cli.BoolFlag{Name: names[0], Aliases: names[1:], Usage: usage, Destination: dst, Value: *dst, DisableDefaultText: true}
}
