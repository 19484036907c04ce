package main

import (
	"context"
	"fmt"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

func verifyVerb() app.Verb {
	var o checkpoint.VerifyOptions
	return app.Verb{
		Name: "verify", Args: "DIR|FILE",
		Usage:   "check a checkpoint: files, ranges, coverage, items, with --deep every byte; exit 4 if it has faults",
		Example: "ckpt-shard verify small/step-10 --deep",
		Flags: append(limits(&o.ReadOptions),
			app.Switch(&o.Deep, "read every byte and hold it to the checksums that there are", "deep")),
		Run: func(ctx context.Context, e *app.Env) error { return verify(ctx, e, o) },
	}
}

func verify(ctx context.Context, e *app.Env, o checkpoint.VerifyOptions) error {
	var bar *app.Bar
	o.Begin = func(total int64) func(int64) {
		bar.Close()
		bar = e.Bytes("verify", total)
		return bar.Add
	}
	v, err := checkpoint.Verify(ctx, e.Args[0], o, func(fault string) error {
		_, err := fmt.Fprintln(e.Out, fault)
		return err
	})
	bar.Close()
	if err != nil {
		return err
	}
	if v.Held != "" {
		e.Log.Info(fmt.Sprintf("%s: held to %s", e.Args[0], v.Held))
	}
	if v.Faults > 0 {
		return exit.No.Errorf("%s: %s", e.Args[0], manifest.Counted(v.Faults, "fault"))
	}
	_, err = fmt.Fprintf(e.Out, "whole: %s in %s, %d bytes of tensors\n", manifest.Counted(v.Items, "item"), manifest.Counted(v.Files, "file"), v.Bytes)
	return err
}
