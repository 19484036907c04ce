package app

import (
	"github.com/urfave/cli/v2"

	"titan/libtitan/estimate"
	"titan/libtitan/model/llama3"
)

// Named is [Text] with values that have names; shell completion offers them, and others are as good.
func Named(dst *string, known []string, usage string, names ...string) cli.Flag {
	same := func(s string) (string, error) { return s, nil }
	v := &choice{value[string]{dst, same, func(s string) string { return s }}, known}
	return &cli.GenericFlag{Name: names[0], Aliases: names[1:], Usage: usage, Value: v}
}

// Model is [Named] of the models known by name.
func Model(dst *string, usage string, names ...string) cli.Flag {
	var known []string
	for _, p := range llama3.Presets() {
		known = append(known, p.Name)
	}
	return Named(dst, known, usage, names...)
}

// GPU is [Named] of the GPUs known by name.
func GPU(dst *string, usage string) cli.Flag {
	var known []string
	machines, _ := estimate.Machines() // an error comes back where one of them is looked for
	for _, m := range machines {
		known = append(known, m.Name)
	}
	return Named(dst, known, usage, "gpu")
}

// ActivationCheckpoint is the flag that manifest.ParseActivationCheckpoint reads.
func ActivationCheckpoint(dst *string) cli.Flag {
	return Named(dst, []string{"none", "full", "selective:op", "selective:cheap"},
		"`WHAT` the backward computes again: none, full, selective:op, selective:cheap, or selective:N for every N-th layer", "ac")
}
