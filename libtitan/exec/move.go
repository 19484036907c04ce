package exec

import (
	"context"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// mover is a change of layout bound to its memory.
type mover struct {
	plan.Where
	comm    comm.Comm
	attr    op.MoveAttr
	in, out tensor
	from    *graph.Value // in, on all ranks
	to      *graph.Value // out, on all ranks
	group   comm.Group
	what    string
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
	n := s.Node
	m := &mover{Where: r.prog.Where, comm: r.comm, attr: n.Attr.(op.MoveAttr), in: c.in[0], out: c.out[0], from: n.In[0], to: n.Results[0]}
	m.what = fmt.Sprintf("%s %s %v", n.Op.Name, n.FQN, s.Action)
	m.group.Name = m.attr.Axes.String()
	for _, rank := range m.Mesh.Group(m.Coord, m.attr.Axes) {
		m.group.Ranks = append(m.group.Ranks, r.world(m.PP, rank))
	}
	return moves[op.Move(n.Op.Name)](m)
}

// world is the rank, among all, of a rank of a stage's mesh.
func (r *Runner) world(pp, rank int) int { return pp*r.prog.Mesh.World() + rank }

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

// buffers gives a contiguous buffer for each part: the tensor's own memory where it has one row.
func (s strips) buffers() [][]byte {
	out := make([][]byte, len(s.width))
	at := 0
	for i, w := range s.width {
		if s.outer == 1 {
			out[i] = s.data[at:][:w]
			at += w
		} else {
			out[i] = make([]byte, s.outer*w)
		}
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
	s := cutStrips(m.out, m.attr.From, m.shapes(m.from))
	bufs := s.buffers()
	return func(ctx context.Context) error {
		if err := m.comm.AllGather(ctx, m.group, m.what, m.in.data, bufs); err != nil {
			return err
		}
		s.copyTo(bufs, true)
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
	return func(ctx context.Context) error {
		copy(m.out.data, m.in.data)
		return m.comm.AllReduce(ctx, m.group, m.what, m.in.DType, m.reduction(), m.out.data)
	}
}

func bindReduceScatter(m *mover) func(ctx context.Context) error {
	s := cutStrips(m.in, m.attr.Dim, m.shapes(m.to))
	bufs := s.buffers()
	return func(ctx context.Context) error {
		s.copyTo(bufs, false)
		return m.comm.ReduceScatter(ctx, m.group, m.what, m.in.DType, m.reduction(), bufs, m.out.data)
	}
}

func bindAllToAll(m *mover) func(ctx context.Context) error {
	give, take := cutStrips(m.in, m.attr.Dim, m.shapes(m.to)), cutStrips(m.out, m.attr.From, m.shapes(m.from))
	out, in := give.buffers(), take.buffers()
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
	s := cutStrips(m.in, m.attr.Dim, m.shapes(m.to))
	mine := m.Mesh.Index(m.Coord, m.attr.Axes)
	return func(context.Context) error {
		at := 0
		for _, w := range s.width[:mine] {
			at += w
		}
		w := s.width[mine]
		for row := range s.outer {
			copy(m.out.data[row*w:][:w], s.data[row*s.total+at:])
		}
		return nil
	}
}

func bindMask(m *mover) func(ctx context.Context) error {
	return func(context.Context) error {
		if m.Mesh.Index(m.Coord, m.attr.Axes) == 0 {
			copy(m.out.data, m.in.data)
		} else {
			clear(m.out.data)
		}
		return nil
	}
}
