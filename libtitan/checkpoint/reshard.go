package checkpoint

import "context"

// Reshard writes a checkpoint of any format as a DCP folder cut by a layout. The tensors' bytes do not change.
func Reshard(ctx context.Context, in, out string, layout *Layout, o MoveOptions) error {
	v, err := openView(in, &o)
	if err != nil {
		return err
	}
	defer v.Close()
	return v.writeNoting(ctx, target{path: out, format: DCP, layout: layout}, &o)
}
