package exec

import (
	"context"
	"fmt"
	"slices"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// Collectives moves the memory of devices between ranks: comm/nccl does. What is bound is done on its stream, in the
// order in which all members of its group do theirs.
type Collectives interface {
	// Open makes ready the groups that this rank moves memory in. All ranks call it together.
	Open(ctx context.Context, groups []comm.Group) error
	AllGatherOn(s *cuda.Stream, g comm.Group, what string, tensors ...cuda.Gathered) (cuda.Work, error)
	ReduceScatterOn(s *cuda.Stream, g comm.Group, what string, dt dtype.DType, op comm.Op, tensors ...cuda.Scattered) (cuda.Work, error)
	AllReduceOn(s *cuda.Stream, g comm.Group, what string, dt dtype.DType, op comm.Op, tensors ...cuda.Reduced) (cuda.Work, error)
	AllToAllOn(s *cuda.Stream, g comm.Group, what string, in, out []cuda.Span) (cuda.Work, error)
	// SendOn sends to a member, by its place in the group; RecvOn takes what was sent, in order.
	SendOn(s *cuda.Stream, g comm.Group, what string, to int, x cuda.Span) (cuda.Work, error)
	RecvOn(s *cuda.Stream, g comm.Group, what string, from int, x cuda.Span) (cuda.Work, error)
	// OpenWindow takes bytes of memory that gathers of g, in place, fill beside what is computed. All ranks call it
	// together, those that gather nothing with no bytes.
	OpenWindow(ctx context.Context, g comm.Group, bytes int) (cuda.Ptr, error)
	CloseWindow(p cuda.Ptr) error
	// Sync waits for a stream or an event, and ends when the job has failed elsewhere.
	Sync(ctx context.Context, what interface{ Sync() error }) error
}

// gpuPeers binds what a program moves between GPUs. FSDP's gathers and reductions are on streams of their own, beside
// what is computed until they are used; other moves are on the stream that computes. What goes to another stage
// is copied to a place of its own and sent from there on a stream of its own: the sender goes on, and the receiver
// takes it when it needs it, whatever else is under way between the two.
type gpuPeers struct {
	e     *cuda.Engine
	prog  *plan.Program
	moves Collectives // nil: there is one rank
	taken []cuda.Ptr
	// window is where what is gathered by the plan's windows lies.
	window cuda.Ptr
	lanes  map[string]*gpuLane
	round  *gpuLane               // of keys and values that go round; nil: none do
	aside  map[op.Move]*flights   // FSDP's moves, by what they do
	beside map[string]bool        // the names of their groups
	own    map[plan.Tag]cuda.Span // sent to a stage of this rank
	on     *cuda.Stream           // where what is bound next runs, if the caching allocator's program says so
	// staged: it sends to other stages or receives from them, and is not recorded: how the branches of a graph run side by
	// side is CUDA's choice, and one that waits for a peer might keep another from what the peer waits for.
	staged bool
}

func newGPUPeers(e *cuda.Engine, prog *plan.Program, c Collectives) (*gpuPeers, error) {
	p := &gpuPeers{e: e, prog: prog, moves: c, lanes: map[string]*gpuLane{}, own: map[plan.Tag]cuda.Span{}}
	p.aside, p.beside = map[op.Move]*flights{}, map[string]bool{}
	var groups []comm.Group
	for i := range prog.Steps {
		if s := &prog.Steps[i]; s.Aside {
			p.beside[asideName(moveGroup(prog, s), s)] = true
		}
	}
	for i := range prog.Steps {
		s := &prog.Steps[i]
		switch {
		case s.Kind == plan.Send || s.Kind == plan.Recv:
			if s.Peer != prog.PP {
				p.staged, groups = true, append(groups, p.pair(s))
			}
		case s.Kind == plan.Compute && gpuMoves[op.Move(s.Node.Op.Name)] != nil:
			if sends(s) {
				groups = append(groups, p.moveGroup(s))
			}
		case s.Kind == plan.Compute && goesRound(s):
			groups = append(groups, p.ring())
		}
	}
	if c == nil {
		if len(groups) > 0 {
			return nil, fmt.Errorf("exec: %v: nothing moves memory between GPUs here: start a process a GPU", groups[0])
		}
		return p, nil
	}
	return p, c.Open(context.Background(), groups)
}

// openWindow takes the memory of the plan's windows.
func (p *gpuPeers) openWindow() (err error) {
	if p.moves == nil {
		return nil
	}
	var g comm.Group
	for i := range p.prog.Steps {
		s := &p.prog.Steps[i]
		if s.Aside && slices.ContainsFunc(s.Out, func(o *plan.Slot) bool { return o.Class == plan.Window }) {
			g = p.moveGroup(s)
			break
		}
	}
	p.window, err = p.moves.OpenWindow(context.Background(), g, p.prog.WindowBytes)
	return err
}

// moveGroup is the group of a move. Moves that run beside what is computed have others, by what they do: a communicator
// does one thing after another. The few that do the same along the same axes share it: each costs memory.
func (p *gpuPeers) moveGroup(s *plan.Step) comm.Group {
	g := moveGroup(p.prog, s)
	if name := asideName(g, s); p.beside[name] {
		g.Name = name
	}
	return g
}

func asideName(g comm.Group, s *plan.Step) string { return g.Name + " aside, " + s.Node.Op.Name }

// sends reports whether a move sends anything.
func sends(s *plan.Step) bool {
	name := op.Move(s.Node.Op.Name)
	return name != op.Slice && name != op.Mask
}

// bind binds a step that moves values, with room to pack in; ok is false for other steps.
func (p *gpuPeers) bind(s *plan.Step, c gpuCall, room cuda.Ptr) (w cuda.Work, ok bool, err error) {
	switch {
	case s.Kind == plan.Send:
		w, err = p.bindSend(s, c.in[0])
	case s.Kind == plan.Recv:
		w, err = p.bindRecv(s, c.out[0])
	case s.Kind == plan.Compute && gpuMoves[op.Move(s.Node.Op.Name)] != nil:
		m := &gpuMover{mover: newMover(p.prog, s, hostless(c.in), hostless(c.out)), gpuPeers: p, in: c.in, out: c.out, room: room}
		w, err = p.bindMove(s, m)
	case s.Kind == plan.Compute && meets(s):
		w, err = p.bindMeeting(s, c, room)
	default:
		return nil, false, nil
	}
	return w, true, err
}

func (p *gpuPeers) bindMove(s *plan.Step, m *gpuMover) (cuda.Work, error) {
	what := op.Move(s.Node.Op.Name)
	m.group, m.stream = p.moveGroup(s), p.on
	if m.stream == nil {
		m.stream = p.e.Stream
	}
	if p.on != nil || !s.Aside || p.moves == nil {
		return gpuMoves[what](m)
	}
	f, err := p.flightsOf(what)
	if err != nil {
		return nil, err
	}
	m.stream = f.stream
	w, err := gpuMoves[what](m)
	if err != nil {
		return nil, err
	}
	return f.newFlight(w)
}

// flightsOf finds or makes the flights of a kind of move.
func (p *gpuPeers) flightsOf(what op.Move) (f *flights, err error) {
	if f = p.aside[what]; f != nil {
		return f, nil
	}
	f = &flights{e: p.e}
	if f.stream, err = p.e.NewStream(true); err == nil {
		p.aside[what] = f
	}
	return f, err
}

// before is w, the work of steps, after the moves aside whose memory they touch; moves of one kind follow each other.
func (p *gpuPeers) before(w cuda.Work, reads, writes []cuda.Span, s *plan.Step) cuda.Work {
	for what, f := range p.aside {
		if s.Aside && what == op.Move(s.Node.Op.Name) {
			f.list[len(f.list)-1].reads, f.list[len(f.list)-1].writes = reads, writes
			continue
		}
		w = f.before(w, reads, writes)
	}
	return w
}

// end is w after all moves aside.
func (p *gpuPeers) end(w cuda.Work) cuda.Work {
	for _, f := range p.aside {
		w = f.end(w)
	}
	return w
}

func hostless(list []gpuTensor) []tensor {
	out := make([]tensor, len(list))
	for i, t := range list {
		out[i] = t.tensor
	}
	return out
}

// span is the memory from the first byte of t to its last.
func (t gpuTensor) span() cuda.Span {
	bytes := t.Bytes()
	if t.stride > 0 {
		rows := t.Shape[0] * t.Shape[1]
		bytes = (rows-1)*t.stride*t.DType.Size() + bytes/rows
	}
	return cuda.Span{P: t.p, Bytes: bytes}
}

// take takes memory of the device for the life of the program.
func (p *gpuPeers) take(bytes int) (cuda.Span, error) {
	at, err := p.e.Alloc(bytes)
	if err != nil {
		return cuda.Span{}, fmt.Errorf("exec: room to move values: %w", err)
	}
	p.taken = append(p.taken, at)
	return cuda.Span{P: at, Bytes: bytes}, nil
}

// await waits for a stream or an event.
func (p *gpuPeers) await(ctx context.Context, what interface{ Sync() error }) error {
	if p.moves == nil {
		return what.Sync()
	}
	return p.moves.Sync(ctx, what)
}

func (p *gpuPeers) free() error {
	if p.window != 0 {
		if err := p.moves.CloseWindow(p.window); err != nil {
			return err
		}
	}
	for _, at := range p.taken {
		if err := p.e.Free(at); err != nil {
			return err
		}
	}
	return nil
}
