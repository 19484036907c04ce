package comm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A group's name is also where its members meet: other ranks, another name.
func TestGroupString(t *testing.T) {
	for want, g := range map[string]Group{
		"dp_shard [2 3]":        {"dp_shard", []int{2, 3}},
		"tp []":                 {"tp", nil},
		"world [0 1 .. 8]":      World(9),
		"world [0 1 .. 63]":     World(64),
		"pp [0 3 1]":            {"pp", []int{0, 3, 1}},
		"tp [0 1 2 3 4 5 6 7]":  {"tp", World(8).Ranks},
		"cp [9 8 .. 1]":         {"cp", []int{9, 8, 7, 6, 5, 4, 3, 2, 1}},
		"x [0 1 2 3 4 5 6 7 9]": {"x", []int{0, 1, 2, 3, 4, 5, 6, 7, 9}},
	} {
		require.Equal(t, want, g.String())
	}
}
