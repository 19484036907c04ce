package checkpoint

import (
	"context"

	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
)

// HuggingFace is a target of [Convert]: safetensors with Hugging Face's names and order of rows, and a config.json.
const HuggingFace Format = "hf"

// ConvertOptions say what a checkpoint becomes.
type ConvertOptions struct {
	MoveOptions
	To       Format
	DType    dtype.DType    // of floating tensors of the model; Invalid: they stay as they are
	MaxShard int64          // bytes of tensors a safetensors file; 0 means DefaultShardSize
	Layout   *Layout        // of a DCP folder; nil: as the source is cut
	Model    *llama3.Config // nil: what config.json says, or what the shapes are known to be
}

// Convert writes a checkpoint in another format. A Hugging Face model becomes ours on its way to DCP and torch.save, a
// model of ours theirs on its way to [HuggingFace]; plain safetensors keep the names that there are.
func Convert(ctx context.Context, in, out string, o ConvertOptions) error {
	v, err := openView(in, &o.MoveOptions)
	if err != nil {
		return err
	}
	defer v.Close()
	return v.convert(ctx, out, &o)
}

func (v *view) convert(ctx context.Context, out string, o *ConvertOptions) error {
	if o.KeepNames && o.To == HuggingFace {
		o.To = SafetensorsFiles // what is left of it when no name may change
	}
	t := target{path: out, format: o.To, layout: o.Layout, maxShard: o.MaxShard}
	model, err := v.convertNames(o)
	if err != nil {
		return err
	}
	if o.DType != dtype.Invalid {
		n, bytes := v.castFloats(o.DType)
		o.note("cast: %s, %d bytes, to %s", manifest.Counted(n, "tensor"), bytes, o.DType)
	}
	if o.To == HuggingFace {
		config, err := v.hfConfig(model)
		if err != nil {
			return err
		}
		t.format, t.extra = SafetensorsFiles, []extraFile{config}
	}
	return v.write(ctx, t, &o.MoveOptions)
}

// convertNames gives the items the names, and the rows the order, that the target has, and returns the model's
// dimensions where the target needs them.
func (v *view) convertNames(o *ConvertOptions) (llama3.Config, error) {
	switch theirs := v.namedByHF(); {
	case theirs && o.To == HuggingFace:
		return v.fit(o.Model, fromTheirs, &o.MoveOptions)
	case o.To == HuggingFace:
		return v.toHuggingFace(o.Model, &o.MoveOptions)
	case theirs && o.To != SafetensorsFiles && !o.KeepNames:
		return llama3.Config{}, v.fromHuggingFace(o.Model, &o.MoveOptions)
	}
	return llama3.Config{}, nil
}

// ParseFormat finds the format that --to names.
func ParseFormat(name string) (Format, error) {
	switch f := Format(name); f {
	case DCP, SafetensorsFiles, HuggingFace, Torch:
		return f, nil
	}
	return "", exit.Usage.Errorf("--to %q: not among %s, %s, %s, %s", name, DCP, SafetensorsFiles, HuggingFace, Torch)
}
