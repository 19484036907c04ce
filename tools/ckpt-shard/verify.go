package main

import (
	"context"
	"fmt"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func verifyVerb() app.Verb {
	var o checkpoint.ReadOptions
	return app.Verb{
		Name: "verify", Args: "DIR",
		Usage:   "check a folder against its metadata: files, ranges, coverage, items; exit 4 if it has faults",
		Example: "ckpt-shard verify runs/step-10",
		Flags:   limits(&o),
		Run: func(ctx context.Context, e *app.Env) error {
			v, err := checkpoint.Verify(ctx, e.Args[0], o, func(fault string) error {
				_, err := fmt.Fprintln(e.Out, fault)
				return err
			})
			switch {
			case err != nil:
				return err
			case v.Faults > 0:
				return exit.No.Errorf("%s: %d faults", e.Args[0], v.Faults)
			}
			_, err = fmt.Fprintf(e.Out, "whole: %d items in %d files, %d bytes of tensors\n", v.Items, v.Files, v.Bytes)
			return err
		},
	}
}
