package main

import (
	"bufio"
	"context"

	"titan/libtitan/checkpoint"
	"titan/tools/internal/app"
)

func showVerb() app.Verb {
	var o checkpoint.ShowOptions
	return app.Verb{
		Name: "show", Args: "DIR|FILE FQN",
		Usage:   "show one item: where it lies, statistics, values",
		Example: "ckpt-shard show small/step-10 norm.weight --stats --slice 0:8",
		Flags: append(limits(&o.ReadOptions),
			app.Switch(&o.Stats, "add counts, least, greatest, mean and standard deviation", "stats"),
			app.Text(&o.Slice, "print the elements of `RANGES`, one for each dim: 0:4,0:8", "slice")),
		Run: func(ctx context.Context, e *app.Env) error {
			src, err := checkpoint.OpenSource(e.Args[0])
			if err != nil {
				return err
			}
			defer src.Close()
			if o.Stats {
				defer progress(e, &o.ReadOptions, "show", checkpoint.ItemBytes(src, e.Args[1]))()
			}
			w := bufio.NewWriter(e.Out)
			if err := checkpoint.Show(ctx, w, src, e.Args[1], o); err != nil {
				return err
			}
			return w.Flush()
		},
	}
}
