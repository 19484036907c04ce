package main

import (
	"context"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func reshardVerb() app.Verb {
	var o checkpoint.MoveOptions
	var by layoutFlags
	return app.Verb{
		Name: "reshard", Args: "IN OUT",
		Usage:   "write a checkpoint of any format as a DCP folder for another number of ranks or another mesh",
		Example: "ckpt-shard reshard small/step-10 eight --world-size 8 && ckpt-shard diff small/step-10 eight",
		Flags: append(append(by.flags(), moveFlags(&o)...),
			app.Switch(&o.Compress, "make the items zstd frames", "compress")),
		Run: func(ctx context.Context, e *app.Env) error {
			if err := by.load(e); err != nil {
				return err
			}
			layout, err := by.get()
			if err != nil {
				return err
			}
			if layout == nil {
				return exit.Usage.Errorf("give --world-size, --manifest or --layout")
			}
			return moving(e, "reshard", &o, func() error {
				return checkpoint.Reshard(ctx, e.Args[0], e.Args[1], layout, o)
			})
		},
	}
}
