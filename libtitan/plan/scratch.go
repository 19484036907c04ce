package plan

import (
	"slices"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// scratch gives a step the working memory that it needs while it runs.
func (b *builder) scratch(s *Step) {
	n := 0
	switch a := s.Node.Attr.(type) {
	case op.MoveAttr:
		n = packed(op.Move(s.Node.Op.Name), a, s.In, s.Out)
	case op.AttentionAttr:
		switch {
		case a.Ring:
			n = ringed(s.In, s.Out)
		case a.Pieces > 0:
			n = reordered(s.In, s.Out)
		}
	}
	if n == 0 {
		return
	}
	s.Scratch = &Slot{Type: graph.Type{DType: dtype.UInt8, Shape: []int{n}}, FQN: s.Node.FQN, Microbatch: s.Action.Microbatch}
	b.prog.Slots = append(b.prog.Slots, s.Scratch)
}

// packed is the bytes that a move packs: ranks exchange contiguous parts, which those of a tensor that is cut along an
// inner dim are not.
func packed(m op.Move, a op.MoveAttr, in, out []*Slot) int {
	n := 0
	add := func(slots []*Slot, dim int) {
		for _, s := range slots {
			if !contiguous(s.Shape, dim) {
				n += roundUp(s.Bytes())
			}
		}
	}
	if m == op.ReduceScatter || m == op.AllToAll {
		add(in, a.Dim)
	}
	if m == op.AllGather || m == op.AllToAll {
		add(out, a.From)
	}
	return n
}

// contiguous reports whether the parts of a tensor that is cut along dim are contiguous.
func contiguous(shape []int, dim int) bool {
	for _, n := range shape[:dim] {
		if n != 1 {
			return false
		}
	}
	return true
}

// reordered is the bytes of attention whose positions are in head-tail order: of one row of the batch, the keys and
// values in their own order, in the backward their gradients and a run's part of them too, and a run's statistics.
func reordered(in, out []*Slot) int {
	q, k, copies := in[0], in[1], 2
	if len(out) == 3 {
		q, k, copies = in[1], in[2], 6
	}
	perRow := k.Bytes() / max(1, k.Shape[0])
	return copies*roundUp(perRow) + roundUp(4*q.Shape[1]*q.Shape[2])
}

// ringed is the bytes of attention whose keys and values go round: all that it reads and makes, as float32, and the part
// of one row of the batch that a run of queries and a run of keys make, with its statistics.
func ringed(in, out []*Slot) int {
	n := 0
	for i, s := range append(slices.Clone(in), out...) {
		if len(s.Shape) != 4 {
			continue // statistics
		}
		n += roundUp(4 * s.NumElements())
		if i >= len(in) {
			n += roundUp(4 * s.NumElements() / max(1, s.Shape[0]))
		}
	}
	return n + roundUp(4*out[0].Shape[1]*out[0].Shape[2])
}

// roomsOnDevice gives attention under context parallelism the working memory that it needs on a GPU.
func (p *Program) roomsOnDevice() {
	for i := range p.Steps {
		s := &p.Steps[i]
		if s.Kind != Compute || s.Scratch == nil {
			continue
		}
		if a, ok := s.Node.Attr.(op.AttentionAttr); ok {
			s.Scratch.Shape[0] = met(s.In, s.Out, a.Ring)
		}
	}
}

// met is the bytes of attention on a GPU whose runs of queries meet runs of keys one at a time: the sums in float32 of
// what it makes, what one meeting makes of it and the statistics; where keys and values go round, two blocks of them
// that come, and a second of their gradients.
func met(in, out []*Slot, ring bool) int {
	q, kv := in[0], in[1:3]
	if len(out) == 3 {
		q, kv = in[1], in[2:4]
	}
	n := 2*roundUp(4*q.NumElements()) + roundUp(4*q.NumElements()/max(1, q.Shape[3]))
	for _, s := range kv {
		if ring {
			n += 2 * roundUp(s.Bytes())
		}
		if len(out) == 3 {
			n += 3 * roundUp(4*s.NumElements())
		}
	}
	return n
}
