package checkpoint

import (
	"context"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Part says which items of a checkpoint are taken: those that pass every condition.
type Part struct {
	Glob      string   // a pattern for names, as globFits has it; "" is all
	Modules   []string // of a stage; nil is all. Moments go with their parameters
	ModelOnly bool     // without the optimizer, the scheduler, the data's place and the trainer's state
}

// Extract writes part of a checkpoint, in its format and layout.
func Extract(ctx context.Context, in, out string, p Part, o MoveOptions) error {
	if _, err := globFits(p.Glob, ""); err != nil {
		return exit.Usage.Errorf("glob %q: %w", p.Glob, err)
	}
	v, err := openView(in, &o)
	if err != nil {
		return err
	}
	defer v.Close()
	all := len(v.moves)
	v.keep(func(m *move) bool { return p.has(m.to) })
	o.note("%d of %s taken", len(v.moves), manifest.Counted(all, "item"))
	return v.write(ctx, target{path: out, format: v.Format()}, &o)
}

func (p Part) has(it Item) bool {
	if p.Glob != "" {
		if ok, _ := globFits(p.Glob, it.FQN); !ok {
			return false
		}
	}
	if p.ModelOnly && !ofModel(it) {
		return false
	}
	return p.Modules == nil || moduleOf(it.FQN, [][]string{p.Modules}) != nil
}
