package main

import (
	"context"
	"fmt"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func editVerb() app.Verb {
	var sets []string
	var o checkpoint.ReadOptions
	return app.Verb{
		Name: "edit", Args: "DIR|FILE FQN",
		Usage:   "change elements of a tensor where it lies, to poison a run or to mend one",
		Example: "ckpt-shard edit small/step-10 norm.weight --set 3=1.5",
		Flags: append(limits(&o),
			app.Texts(&sets, "`INDEX=VALUE`: 3,0=nan, or =1.5 for a scalar; may be given again", "set")),
		Run: func(ctx context.Context, e *app.Env) error {
			if len(sets) == 0 {
				return exit.Usage.Errorf("give --set INDEX=VALUE, such as --set 3,0=nan")
			}
			done, err := checkpoint.Edit(ctx, e.Args[0], e.Args[1], sets)
			if err != nil {
				return err
			}
			for _, d := range done {
				if _, err := fmt.Fprintf(e.Out, "%s %v: %s -> %s\n", checkpoint.LineName(e.Args[1]), d.Index, d.Old, d.New); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
