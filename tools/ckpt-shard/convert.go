package main

import (
	"context"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func convertVerb() app.Verb {
	var o checkpoint.ConvertOptions
	var by layoutFlags
	var to, dtype, model, compress string
	o.MaxShard = checkpoint.DefaultShardSize
	return app.Verb{
		Name: "convert", Args: "IN OUT",
		Usage:   "write a checkpoint in another format: dcp, safetensors, hf (Hugging Face's names) or torch (a .pt)",
		Example: "ckpt-shard convert small/step-10 exported --to hf --dtype bf16",
		Flags: append(append(by.flags(), moveFlags(&o.MoveOptions)...),
			app.Named(&to, []string{"dcp", "safetensors", "hf", "torch"}, "`FORMAT` to write: dcp, safetensors, hf, torch", "to"),
			app.Text(&dtype, "cast the model's floating tensors to `TYPE`, to nearest even", "dtype"),
			app.Bytes(&o.MaxShard, "bytes of tensors in a safetensors file, at most", "max-shard-size", "max-shard"),
			app.Named(&compress, []string{"zstd"}, "compress a DCP folder's items: `zstd`", "compress"),
			app.Model(&model, "the model's dimensions: a name from meshplan models, or a config.json `FILE`", "model")),
		Run: func(ctx context.Context, e *app.Env) error {
			if to == "" {
				return exit.Usage.Errorf("give --to: dcp, safetensors, hf or torch")
			}
			var err error
			if o.To, err = checkpoint.ParseFormat(to); err != nil {
				return err
			}
			if o.DType, err = checkpoint.ParseCast(dtype); err != nil {
				return err
			}
			if err := by.load(e); err != nil {
				return err
			}
			if err := convertTarget(&o, &by, compress, model); err != nil {
				return err
			}
			return moving(e, "convert", &o.MoveOptions, func() error {
				return checkpoint.Convert(ctx, e.Args[0], e.Args[1], o)
			})
		},
	}
}

// convertTarget takes the flags that not every format has.
func convertTarget(o *checkpoint.ConvertOptions, by *layoutFlags, compress, model string) (err error) {
	switch {
	case compress != "" && compress != "zstd":
		return exit.Usage.Errorf("--compress %s: only zstd is known", compress)
	case compress != "" && o.To != checkpoint.DCP:
		return exit.Usage.Errorf("--compress is for --to dcp: the other formats have no compression")
	case by.world+len(by.layout) > 0 && o.To != checkpoint.DCP:
		return exit.Usage.Errorf("--world-size and --layout are for --to dcp")
	}
	o.Compress = compress != ""
	if model != "" {
		if o.Model, err = readModel(model); err != nil {
			return err
		}
	} else if by.read != nil {
		o.Model = &by.read.Model.Config
	}
	if o.To == checkpoint.DCP {
		o.Layout, err = by.get()
	}
	return err
}
