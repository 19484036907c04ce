package main

import (
	"context"
	"fmt"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

func diffVerb() app.Verb {
	var o checkpoint.DiffOptions
	var only string
	return app.Verb{
		Name: "diff", Args: "A B",
		Usage:   "compare two checkpoints, whatever their layouts; exit 4 if they differ",
		Example: "ckpt-shard convert seed seed.pt --to torch && ckpt-shard diff seed seed.pt",
		Flags: append(limits(&o.ReadOptions),
			app.Number(&o.Rtol, "let elements differ by this share of the second's", "rtol"),
			app.Number(&o.Atol, "let elements differ by this much", "atol"),
			app.Text(&o.Glob, "compare the names that the `PATTERN` fits", "glob"),
			app.Choice(&only, []string{"model"}, "compare this part, and leave the optimizer's and the trainer's state", "only")),
		Run: func(ctx context.Context, e *app.Env) error {
			o.ModelOnly = only != ""
			return diff(ctx, e, o)
		},
	}
}

func diff(ctx context.Context, e *app.Env, o checkpoint.DiffOptions) error {
	if o.Rtol < 0 || o.Atol < 0 {
		return exit.Usage.Errorf("--rtol and --atol are not negative")
	}
	a, err := checkpoint.OpenSource(e.Args[0])
	if err != nil {
		return err
	}
	defer a.Close()
	b, err := checkpoint.OpenSource(e.Args[1])
	if err != nil {
		return err
	}
	defer b.Close()
	defer progress(e, &o.ReadOptions, "diff", checkpoint.TensorBytes(a))()
	found, n, err := checkpoint.Diff(ctx, a, b, o)
	switch {
	case err != nil:
		return err
	case found == nil:
		_, err = fmt.Fprintf(e.Out, "equal: %s\n", manifest.Counted(n, "item"))
		return err
	}
	if err := tellDifferences(e, found, n); err != nil {
		return err
	}
	return exit.No.Errorf("%s and %s differ in %s", e.Args[0], e.Args[1], manifest.Counted(len(found), "item"))
}

// tellDifferences prints a line for each item that differs of those compared, and one line for many that differ in one way
// of dtype alone.
func tellDifferences(e *app.Env, found []checkpoint.Difference, compared int) error {
	types := found[0].DTypes
	many := len(found) > 1 && types[0] != types[1]
	for _, d := range found {
		many = many && d.DTypes == types
	}
	if many {
		_, err := fmt.Fprintf(e.Out, "%s in %d of %s, all else equal; values are not compared across dtypes: cast one first with ckpt-shard convert IN OUT --to dcp --dtype %s\n",
			found[0].Why, len(found), manifest.Counted(compared, "item"), types[1])
		return err
	}
	for _, d := range found {
		if _, err := fmt.Fprintf(e.Out, "%s: %s\n", checkpoint.LineName(d.FQN), d.Why); err != nil {
			return err
		}
	}
	return nil
}
