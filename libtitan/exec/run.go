package exec

import (
	"context"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/device/cpu"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// Runner is a program bound to its memory on the host.
type Runner struct {
	prog  *plan.Program
	comm  comm.Comm
	steps []func(ctx context.Context) error
	gpu   *gpuProgram // nil: on the host
	seen  *plan.Values
}

// Follow tells values of every step that is run from now on: on the host while it is done, on a GPU, where a whole program
// is put on a stream at once, before.
func (r *Runner) Follow(values *plan.Values) { r.seen = values }

// Load binds prog to mem and computes its constants. c carries what crosses to other ranks.
func Load(e *cpu.Engine, prog *plan.Program, mem *Memory, c comm.Comm) (*Runner, error) {
	r := &Runner{prog: prog, comm: c}
	for i := range prog.Constants {
		step := &prog.Constants[i]
		c, err := bindCall(e, step, mem)
		if err != nil {
			return nil, err
		}
		run, err := c.bind(step)
		if err != nil {
			return nil, err
		}
		if err := run(); err != nil {
			return nil, err
		}
	}
	for i := range prog.Steps {
		run, err := r.bind(e, &prog.Steps[i], mem)
		if err != nil {
			return nil, err
		}
		r.steps = append(r.steps, run)
	}
	return r, nil
}

// Run does every step once. It ends within one step when ctx does.
func (r *Runner) Run(ctx context.Context) error {
	if r.seen != nil && r.gpu == nil {
		return r.told(func(i int) error { return r.do(ctx, r.steps[i]) })
	}
	if err := r.tell(); err != nil {
		return err
	}
	for _, step := range r.steps {
		if err := r.do(ctx, step); err != nil {
			return err
		}
	}
	return nil
}

func (r *Runner) do(ctx context.Context, step func(context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return step(ctx)
}

// tell tells who follows, if anybody does, of all that is about to be put on a GPU's stream.
func (r *Runner) tell() error {
	if r.seen == nil {
		return nil
	}
	return r.told(func(int) error { return nil })
}

// told does every step while who follows is told of it.
func (r *Runner) told(do func(i int) error) error {
	for i := range r.prog.Steps {
		if _, err := r.seen.Begin(i); err != nil {
			return err
		}
		if err := do(i); err != nil {
			return err
		}
		if err := r.seen.End(i); err != nil {
			return err
		}
	}
	r.seen.Join()
	return nil
}

func (r *Runner) bind(e *cpu.Engine, s *plan.Step, mem *Memory) (func(context.Context) error, error) {
	switch s.Kind {
	case plan.Send:
		t, err := mem.at(s.In[0])
		return func(ctx context.Context) error {
			return r.comm.Send(ctx, r.world(s.Peer, r.me()), tag(s), t.data)
		}, err
	case plan.Recv:
		t, err := mem.at(s.Out[0])
		return func(ctx context.Context) error {
			return r.comm.Recv(ctx, r.world(s.Peer, r.me()), tag(s), t.data)
		}, err
	}
	c, err := bindCall(e, s, mem)
	if err != nil {
		return nil, err
	}
	if s.Kind == plan.Compute && moves[op.Move(s.Node.Op.Name)] != nil {
		return r.bindMove(s, c), nil
	}
	if a, ok := c.attr.(op.AttentionAttr); ok && a.Ring {
		if s.Node.Op.Name == "attention" {
			return r.bindRing(s, c), nil
		}
		return r.bindRingBackward(s, c), nil
	}
	run, err := c.bind(s)
	return func(context.Context) error { return run() }, err
}

// me is this rank's place on the mesh of its stage.
func (r *Runner) me() int { return r.prog.Mesh.Rank(r.prog.Coord) }

// tag names what a step sends or receives.
func tag(s *plan.Step) string {
	kind := "F"
	if s.Tag.Backward {
		kind = "B"
	}
	return fmt.Sprintf("%d%s%d", s.Tag.Stage, kind, s.Tag.Microbatch)
}

// each finds the memory of slots.
func each[T any](slots []*plan.Slot, at func(s *plan.Slot) (T, error)) ([]T, error) {
	out := make([]T, len(slots))
	for i, s := range slots {
		var err error
		if out[i], err = at(s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// bindCall finds the memory of a step.
func bindCall(e *cpu.Engine, s *plan.Step, mem *Memory) (call, error) {
	c := call{e: e, add: s.Add, room: newScratch(s, mem)}
	var err error
	if c.in, err = each(s.In, mem.at); err == nil {
		c.out, err = each(s.Out, mem.at)
	}
	if s.Node != nil {
		c.attr = s.Node.Attr
	}
	return c, err
}

// bind finds the kernel of a step.
func (c call) bind(s *plan.Step) (kernel, error) {
	if s.Kind == plan.Accumulate {
		return accumulate(c), nil
	}
	if s.Node.Op.View {
		return sure(func() {}), nil
	}
	bind := kernels[s.Node.Op.Name]
	if bind == nil {
		return nil, fmt.Errorf("exec: %s: no kernel on the cpu", s.Node)
	}
	run, err := bind(c)
	if err != nil {
		return nil, fmt.Errorf("exec: %s: %w", s.Node, err)
	}
	return run, nil
}
