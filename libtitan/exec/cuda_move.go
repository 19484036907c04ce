package exec

import (
	"titan/libtitan/device/cuda"
	"titan/libtitan/op"
)

// gpuMover is a change of layout bound to memory of the device.
type gpuMover struct {
	*mover
	*gpuPeers
	in, out []gpuTensor
	room    cuda.Ptr // of the step, to pack in
	stream  *cuda.Stream
}

// gpuMoves, by op, as moves on the host.
var gpuMoves = map[op.Move]func(m *gpuMover) (cuda.Work, error){
	op.AllGather:     gpuAllGather,
	op.AllReduce:     gpuAllReduce,
	op.ReduceScatter: gpuReduceScatter,
	op.AllToAll:      gpuAllToAll,
	op.Slice:         gpuSlice,
	op.Mask:          gpuMask,
}

// gpuStrips is a tensor on the device cut along a dim, and a span of memory for each part: the tensor's own where it
// has one row, else in a packed copy.
type gpuStrips struct {
	strips
	p      cuda.Ptr
	stream *cuda.Stream
	spans  []cuda.Span
}

// lay gives the parts of cut, which lies at p, their spans: in room that is left to pack in, if that is needed.
func (m *gpuMover) lay(cut strips, p cuda.Ptr) gpuStrips {
	s := gpuStrips{strips: cut, p: p, stream: m.stream}
	at := p
	if cut.outer > 1 {
		at = m.room
		m.room += cuda.Ptr((cut.outer*cut.total + 63) / 64 * 64) // as planned
	}
	for _, w := range cut.width {
		s.spans = append(s.spans, cuda.Span{P: at, Bytes: cut.outer * w})
		at += cuda.Ptr(cut.outer * w)
	}
	return s
}

// copy copies the parts to the packed copy, or back.
func (s gpuStrips) copy(back bool) error {
	if s.outer == 1 {
		return nil
	}
	at := s.p
	for i, w := range s.width {
		dst, dstPitch, src, srcPitch := s.spans[i].P, w, at, s.total
		if back {
			dst, dstPitch, src, srcPitch = src, srcPitch, dst, dstPitch
		}
		if err := s.stream.CopyRows(dst, dstPitch, src, srcPitch, w, s.outer); err != nil {
			return err
		}
		at += cuda.Ptr(w)
	}
	return nil
}

// around does w between the packing of some tensors and the unpacking of others.
func around(give []gpuStrips, w cuda.Work, take []gpuStrips) cuda.Work {
	return func() error {
		for _, s := range give {
			if err := s.copy(false); err != nil {
				return err
			}
		}
		if err := w(); err != nil {
			return err
		}
		for _, s := range take {
			if err := s.copy(true); err != nil {
				return err
			}
		}
		return nil
	}
}

func gpuAllGather(m *gpuMover) (cuda.Work, error) {
	outs, tensors := make([]gpuStrips, len(m.tensors)), make([]cuda.Gathered, len(m.tensors))
	for k, t := range m.tensors {
		outs[k] = m.lay(cutStrips(t.out, m.attr.From, m.shapes(t.from)), m.out[k].p)
		tensors[k] = cuda.Gathered{Mine: m.in[k].span(), Out: outs[k].spans}
	}
	w, err := m.moves.AllGatherOn(m.stream, m.group, m.what, tensors...)
	return around(nil, w, outs), err
}

func gpuReduceScatter(m *gpuMover) (cuda.Work, error) {
	ins, tensors := make([]gpuStrips, len(m.tensors)), make([]cuda.Scattered, len(m.tensors))
	for k, t := range m.tensors {
		ins[k] = m.lay(cutStrips(t.in, m.attr.Dim, m.shapes(t.to)), m.in[k].p)
		tensors[k] = cuda.Scattered{Pieces: ins[k].spans, Out: m.out[k].span()}
	}
	w, err := m.moves.ReduceScatterOn(m.stream, m.group, m.what, m.dtype(), m.reduction(), tensors...)
	return around(ins, w, nil), err
}

func gpuAllReduce(m *gpuMover) (cuda.Work, error) {
	var tensors []cuda.Reduced
	for k := range m.tensors {
		tensors = append(tensors, cuda.Reduced{In: m.in[k].span(), Out: m.out[k].span()})
	}
	return m.moves.AllReduceOn(m.stream, m.group, m.what, m.dtype(), m.reduction(), tensors...)
}

func gpuAllToAll(m *gpuMover) (cuda.Work, error) {
	t := m.tensors[0]
	give, take := m.lay(cutStrips(t.in, m.attr.Dim, m.shapes(t.to)), m.in[0].p), m.lay(cutStrips(t.out, m.attr.From, m.shapes(t.from)), m.out[0].p)
	w, err := m.moves.AllToAllOn(m.stream, m.group, m.what, give.spans, take.spans)
	return around([]gpuStrips{give}, w, []gpuStrips{take}), err
}

func gpuSlice(m *gpuMover) (cuda.Work, error) {
	s := cutStrips(m.tensors[0].in, m.attr.Dim, m.shapes(m.tensors[0].to))
	mine, at := m.Mesh.Index(m.Coord, m.attr.Axes), 0
	for _, w := range s.width[:mine] {
		at += w
	}
	w := s.width[mine]
	return func() error {
		return m.stream.CopyRows(m.out[0].p, w, m.in[0].p+cuda.Ptr(at), s.total, w, s.outer)
	}, nil
}

func gpuMask(m *gpuMover) (cuda.Work, error) {
	out := m.out[0].span()
	if m.Mesh.Index(m.Coord, m.attr.Axes) == 0 {
		return func() error { return m.stream.Copy(out.P, m.in[0].p, out.Bytes) }, nil
	}
	return func() error { return m.stream.Zero(out.P, out.Bytes) }, nil
}
