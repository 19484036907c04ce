package exec

import (
	"context"
	"errors"
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
	own    map[plan.Tag]cuda.Span // sent to a stage of this rank
	on     *cuda.Stream           // where what is bound next runs, if the caching allocator's program says so
	// staged: it sends to other stages or receives from them, and is not recorded: how the branches of a graph run side by
	// side is CUDA's choice, and one that waits for a peer might keep another from what the peer waits for.
	staged bool
}

// gpuLane is what one stage sends another in one direction, or what goes round.
type gpuLane struct {
	stream *cuda.Stream
	ready  *cuda.Event // what is sent is in its place
	done   *cuda.Event // all is sent
	last   int         // microbatch
}

func newGPUPeers(e *cuda.Engine, prog *plan.Program, c Collectives) (*gpuPeers, error) {
	p := &gpuPeers{e: e, prog: prog, moves: c, lanes: map[string]*gpuLane{}, own: map[plan.Tag]cuda.Span{}}
	p.aside = map[op.Move]*flights{}
	var groups []comm.Group
	for i := range prog.Steps {
		s := &prog.Steps[i]
		switch {
		case s.Kind == plan.Send || s.Kind == plan.Recv:
			if s.Peer != prog.PP {
				p.staged, groups = true, append(groups, p.pair(s))
			}
		case s.Kind == plan.Compute && gpuMoves[op.Move(s.Node.Op.Name)] != nil:
			m := newMover(prog, s, make([]tensor, len(s.In)), make([]tensor, len(s.Out)))
			if s.Aside {
				m.group.Name += aside(s)
			}
			if sends(s) {
				groups = append(groups, m.group)
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
			g = newMover(p.prog, s, make([]tensor, len(s.In)), make([]tensor, len(s.Out))).group
			g.Name += aside(s)
			break
		}
	}
	p.window, err = p.moves.OpenWindow(context.Background(), g, p.prog.WindowBytes)
	return err
}

// aside is the end of the names of groups whose moves run beside what is computed: a communicator does one thing after
// another.
func aside(s *plan.Step) string { return " aside, " + s.Node.Op.Name }

// sends reports whether a move sends anything.
func sends(s *plan.Step) bool {
	name := op.Move(s.Node.Op.Name)
	return name != op.Slice && name != op.Mask
}

// pair is the group of the two ends of a step that sends or receives, the sender first.
func (p *gpuPeers) pair(s *plan.Step) comm.Group {
	me := p.prog.Mesh.Rank(p.prog.Coord)
	from, to := world(p.prog, p.prog.PP, me), world(p.prog, s.Peer, me)
	if s.Kind == plan.Recv {
		from, to = to, from
	}
	return comm.Group{Name: "pp " + laneName(s), Ranks: []int{from, to}}
}

// laneName is tag without the microbatch.
func laneName(s *plan.Step) string {
	if s.Tag.Backward {
		return fmt.Sprintf("%dB", s.Tag.Stage)
	}
	return fmt.Sprintf("%dF", s.Tag.Stage)
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
	if p.on != nil {
		if m.stream = p.on; s.Aside {
			m.group.Name += aside(s)
		}
		return gpuMoves[what](m)
	}
	m.stream = p.e.Stream
	if !s.Aside || p.moves == nil {
		return gpuMoves[what](m)
	}
	f := p.aside[what]
	if f == nil {
		f = &flights{e: p.e}
		p.aside[what] = f
		var err error
		if f.stream, err = p.e.NewStream(true); err != nil {
			return nil, err
		}
	}
	m.stream, m.group.Name = f.stream, m.group.Name+aside(s)
	w, err := gpuMoves[what](m)
	if err != nil {
		return nil, err
	}
	return f.newFlight(w)
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

func (t gpuTensor) span() cuda.Span { return cuda.Span{P: t.p, Bytes: t.Bytes()} }

// take takes memory of the device for the life of the program.
func (p *gpuPeers) take(bytes int) (cuda.Span, error) {
	at, err := p.e.Alloc(bytes)
	if err != nil {
		return cuda.Span{}, fmt.Errorf("exec: room to move values: %w", err)
	}
	p.taken = append(p.taken, at)
	return cuda.Span{P: at, Bytes: bytes}, nil
}

func newGPULane(e *cuda.Engine) (*gpuLane, error) {
	l := &gpuLane{last: -1}
	var err error
	if l.stream, err = e.NewStream(true); err != nil {
		return nil, err
	}
	if l.ready, err = e.NewEvent(false); err != nil {
		return nil, err
	}
	l.done, err = e.NewEvent(false)
	return l, err
}

// lane finds or makes the lane of a step that sends. Messages of a lane are not told apart, so their order must be that
// in which they are taken.
func (p *gpuPeers) lane(s *plan.Step) (*gpuLane, error) {
	l := p.lanes[laneName(s)]
	if l == nil {
		var err error
		if l, err = newGPULane(p.e); err != nil {
			return nil, err
		}
		p.lanes[laneName(s)] = l
	}
	if s.Tag.Microbatch <= l.last {
		return nil, fmt.Errorf("exec: %s: sent after microbatch %d: a schedule that sends out of order is not run on cuda", s, l.last)
	}
	l.last = s.Tag.Microbatch
	return l, nil
}

// bindSend copies what is sent, so that its memory can be used again, and sends the copy beside what follows.
func (p *gpuPeers) bindSend(s *plan.Step, t gpuTensor) (cuda.Work, error) {
	place, err := p.take(t.Bytes())
	if err != nil {
		return nil, err
	}
	keep := func() error { return p.e.Stream.Copy(place.P, t.p, place.Bytes) }
	if s.Peer == p.prog.PP {
		p.own[s.Tag] = place
		return keep, nil
	}
	l, err := p.lane(s)
	if err != nil {
		return nil, err
	}
	send, err := p.moves.SendOn(l.stream, p.pair(s), tag(s), 1, place)
	if err != nil {
		return nil, err
	}
	return func() error {
		if err := errors.Join(keep(), p.e.Stream.Record(l.ready), l.stream.Wait(l.ready)); err != nil {
			return err
		}
		return send()
	}, nil
}

func (p *gpuPeers) bindRecv(s *plan.Step, t gpuTensor) (cuda.Work, error) {
	if s.Peer != p.prog.PP {
		return p.moves.RecvOn(p.e.Stream, p.pair(s), tag(s), 0, t.span())
	}
	place, ok := p.own[s.Tag]
	if !ok {
		return nil, fmt.Errorf("exec: %s: it is not sent before", s)
	}
	return func() error { return p.e.Stream.Copy(t.p, place.P, place.Bytes) }, nil
}

// join makes the stream that computes wait for all that was sent.
func (p *gpuPeers) join() error {
	for _, l := range p.lanes {
		if err := errors.Join(l.stream.Record(l.done), p.e.Stream.Wait(l.done)); err != nil {
			return err
		}
	}
	return nil
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
