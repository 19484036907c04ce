package main

import (
	"context"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func renameVerb() app.Verb {
	var o checkpoint.MoveOptions
	var mapPath, to string
	return app.Verb{
		Name: "rename", Args: "IN OUT",
		Usage:   "write a checkpoint with other names: of a map, or in another spelling of torchtitan's",
		Example: "ckpt-shard rename small/step-10 for-head --to torchtitan-head",
		Flags: append(moveFlags(&o),
			app.Text(&mapPath, "a `FILE` of names: a JSON object {old: new}, or a line OLD NEW for each", "map"),
			app.Named(&to, []string{"titan", "torchtitan-0.2", "torchtitan-head"}, "spell the names as `WHO` does: titan, torchtitan-0.2, torchtitan-head", "to")),
		Run: func(ctx context.Context, e *app.Env) error {
			if (mapPath == "") == (to == "") {
				return exit.Usage.Errorf("give --map or --to")
			}
			return moving(e, "rename", &o, func() error { return rename(ctx, e, mapPath, to, o) })
		},
	}
}

func rename(ctx context.Context, e *app.Env, mapPath, to string, o checkpoint.MoveOptions) error {
	if to != "" {
		spelling, err := checkpoint.ParseSpelling(to)
		if err != nil {
			return err
		}
		return checkpoint.Respell(ctx, e.Args[0], e.Args[1], spelling, o)
	}
	f, err := e.Open(mapPath)
	if err != nil {
		return err
	}
	defer f.Close()
	names, err := checkpoint.ReadNames(f)
	if err != nil {
		return exit.Input.Errorf("%s: %w", mapPath, err)
	}
	return checkpoint.Rename(ctx, e.Args[0], e.Args[1], names, o)
}
