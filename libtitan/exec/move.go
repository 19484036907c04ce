package exec

import (
	"cmp"
	"context"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// mover is a change of layout bound to its memory.
type mover struct {
	plan.Where
	comm    comm.Comm
	attr    op.MoveAttr
	room    *scratch // to pack in
	tensors []moved
	group   comm.Group
	what    string
}

// moved is one of the values that move together.
type moved struct {
	in, out tensor
	from    *graph.Value // in, on all ranks
	to      *graph.Value // out, on all ranks
}

// moves, by op.
var moves = map[op.Move]func(m *mover) func(ctx context.Context) error{
	op.AllGather:     bindAllGather,
	op.AllReduce:     bindAllReduce,
	op.ReduceScatter: bindReduceScatter,
	op.AllToAll:      bindAllToAll,
	op.Slice:         bindSlice,
	op.Mask:          bindMask,
}

func (r *Runner) bindMove(s *plan.Step, c call) func(ctx context.Context) error {
	m := newMover(r.prog, s, c.in, c.out)
	m.comm, m.room = r.comm, c.room
	return moves[op.Move(s.Node.Op.Name)](m)
}

func newMover(prog *plan.Program, s *plan.Step, in, out []tensor) *mover {
	n := s.Node
	m := &mover{Where: prog.Where, attr: n.Attr.(op.MoveAttr)}
	for i := range n.In {
		m.tensors = append(m.tensors, moved{in[i], out[i], n.In[i], n.Results[i]})
	}
	m.what = fmt.Sprintf("%s %v", cmp.Or(n.FQN, "loss"), s.Action)
	m.group = moveGroup(prog, s)
	return m
}

// moveGroup is the ranks among which a step moves values.
func moveGroup(prog *plan.Program, s *plan.Step) comm.Group {
	axes := s.Node.Attr.(op.MoveAttr).Axes
	g := comm.Group{Name: axes.String()}
	for _, rank := range prog.Mesh.Group(prog.Coord, axes) {
		g.Ranks = append(g.Ranks, world(prog, prog.PP, rank))
	}
	return g
}

// world is the rank, among all, of a rank of a stage's mesh.
func world(prog *plan.Program, pp, rank int) int { return pp*prog.Mesh.World() + rank }

func (r *Runner) world(pp, rank int) int { return world(r.prog, pp, rank) }

// shapes are the shapes of v on each member of the group.
func (m *mover) shapes(v *graph.Value) [][]int {
	out := make([][]int, len(m.group.Ranks))
	for i := range out {
		out[i] = m.Mesh.LocalShape(v.Shape, v.Layout, m.Mesh.With(m.Coord, m.attr.Axes, i))
	}
	return out
}

// strips is a tensor cut along dim into parts of the given lengths: by row of the dims before it, each part's bytes.
type strips struct {
	data  []byte
	outer int   // rows
	width []int // bytes of each part in a row
	total int   // bytes of a row
}

func cutStrips(t tensor, dim int, shapes [][]int) strips {
	s := strips{data: t.data, outer: 1}
	for _, n := range t.Shape[:dim] {
		s.outer *= n
	}
	inner := t.DType.Size()
	for _, n := range t.Shape[dim+1:] {
		inner *= n
	}
	for _, shape := range shapes {
		s.width = append(s.width, shape[dim]*inner)
		s.total += shape[dim] * inner
	}
	return s
}

// buffers gives a contiguous buffer for each part: the tensor's own memory where it has one row, else some of room.
func (s strips) buffers(room *scratch) [][]byte {
	data := s.data
	if s.outer != 1 {
		data = room.take(len(s.data))
	}
	out := make([][]byte, len(s.width))
	for i, w := range s.width {
		out[i], data = data[:s.outer*w], data[s.outer*w:]
	}
	return out
}

// copyTo copies the parts into their buffers, or back; nothing to do where the buffers are the memory.
func (s strips) copyTo(bufs [][]byte, back bool) {
	if s.outer == 1 {
		return
	}
	for row := range s.outer {
		at := row * s.total
		for i, w := range s.width {
			part, buf := s.data[at:][:w], bufs[i][row*w:][:w]
			if back {
				copy(part, buf)
			} else {
				copy(buf, part)
			}
			at += w
		}
	}
}

func bindAllGather(m *mover) func(ctx context.Context) error {
	outs, tensors := make([]strips, len(m.tensors)), make([]comm.Gathered, len(m.tensors))
	for k, t := range m.tensors {
		outs[k] = cutStrips(t.out, m.attr.From, m.shapes(t.from))
		tensors[k] = comm.Gathered{Mine: t.in.data, Out: outs[k].buffers(m.room)}
	}
	return func(ctx context.Context) error {
		if err := m.comm.AllGather(ctx, m.group, m.what, tensors...); err != nil {
			return err
		}
		for k, s := range outs {
			s.copyTo(tensors[k].Out, true)
		}
		return nil
	}
}

func (m *mover) reduction() comm.Op {
	if m.attr.Max {
		return comm.Max
	}
	return comm.Sum
}

func bindAllReduce(m *mover) func(ctx context.Context) error {
	data := make([][]byte, len(m.tensors))
	for k, t := range m.tensors {
		data[k] = t.out.data
	}
	return func(ctx context.Context) error {
		for _, t := range m.tensors {
			copy(t.out.data, t.in.data)
		}
		return m.comm.AllReduce(ctx, m.group, m.what, m.dtype(), m.reduction(), data...)
	}
}

// dtype is the element type, the same for all that move together.
func (m *mover) dtype() dtype.DType { return m.tensors[0].in.DType }

func bindReduceScatter(m *mover) func(ctx context.Context) error {
	ins, tensors := make([]strips, len(m.tensors)), make([]comm.Scattered, len(m.tensors))
	for k, t := range m.tensors {
		ins[k] = cutStrips(t.in, m.attr.Dim, m.shapes(t.to))
		tensors[k] = comm.Scattered{Pieces: ins[k].buffers(m.room), Out: t.out.data}
	}
	return func(ctx context.Context) error {
		for k, s := range ins {
			s.copyTo(tensors[k].Pieces, false)
		}
		return m.comm.ReduceScatter(ctx, m.group, m.what, m.dtype(), m.reduction(), tensors...)
	}
}

func bindAllToAll(m *mover) func(ctx context.Context) error {
	t := m.tensors[0]
	give, take := cutStrips(t.in, m.attr.Dim, m.shapes(t.to)), cutStrips(t.out, m.attr.From, m.shapes(t.from))
	out, in := give.buffers(m.room), take.buffers(m.room)
	return func(ctx context.Context) error {
		give.copyTo(out, false)
		if err := m.comm.AllToAll(ctx, m.group, m.what, out, in); err != nil {
			return err
		}
		take.copyTo(in, true)
		return nil
	}
}

func bindSlice(m *mover) func(ctx context.Context) error {
	t := m.tensors[0]
	s := cutStrips(t.in, m.attr.Dim, m.shapes(t.to))
	mine := m.Mesh.Index(m.Coord, m.attr.Axes)
	return func(context.Context) error {
		at := 0
		for _, w := range s.width[:mine] {
			at += w
		}
		w := s.width[mine]
		for row := range s.outer {
			copy(t.out.data[row*w:][:w], s.data[row*s.total+at:])
		}
		return nil
	}
}

func bindMask(m *mover) func(ctx context.Context) error {
	t := m.tensors[0]
	return func(context.Context) error {
		if m.Mesh.Index(m.Coord, m.attr.Axes) == 0 {
			copy(t.out.data, t.in.data)
		} else {
			clear(t.out.data)
		}
		return nil
	}
}
