package nccl

import (
	"fmt"
	"strconv"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
)

// The collectives bind: what they return puts the collective on the stream, again and again, also while a graph is
// recorded. The members of a group must do them in one order, and their memory must not be touched before the stream has
// done them. what names one in errors.

// ncclCall is a call of NCCL with its arguments.
type ncclCall struct {
	name string
	fn   uintptr
	args []uintptr
}

// together makes calls as one operation.
func (r *Rank) together(calls []ncclCall) error {
	if len(calls) == 0 {
		return nil
	}
	if err := r.lib.check("ncclGroupStart", call(r.lib.groupStart)); err != nil {
		return err
	}
	var err error
	for _, c := range calls {
		if err = r.lib.check(c.name, call(c.fn, c.args...)); err != nil {
			break
		}
	}
	if end := r.lib.check("ncclGroupEnd", call(r.lib.groupEnd)); err == nil {
		err = end
	}
	return err
}

// binding is a collective on its way to be bound.
type binding struct {
	*Rank
	*communicator
	stream *cuda.Stream
	entry  entry
	calls  []ncclCall
	copies []func() error // within the device, before the calls
	bad    error
}

func (r *Rank) begin(s *cuda.Stream, g comm.Group, op, what string) *binding {
	b := &binding{Rank: r, communicator: r.find(g), stream: s, entry: entry{op: op, what: what, group: g.String()}}
	if b.communicator == nil {
		b.communicator = &communicator{Group: g, me: -1}
		b.fail("no communicator of %v was opened", g)
	}
	return b
}

// fail keeps the first reason why the collective cannot be.
func (b *binding) fail(format string, args ...any) {
	if b.bad == nil {
		b.bad = exit.Bug.Errorf("rank %d: %s %s: %s", b.Rank.Rank(), b.entry.op, b.entry.what, fmt.Sprintf(format, args...))
	}
}

func (b *binding) add(name string, fn uintptr, args ...uintptr) { b.addOn(b.handle, name, fn, args...) }

// addOn adds a call on a communicator.
func (b *binding) addOn(handle uintptr, name string, fn uintptr, args ...uintptr) {
	b.calls = append(b.calls, ncclCall{name, fn, append(args, handle, b.stream.Handle())})
}

// give and take are one direction between this rank and member i; of nothing, nothing is sent.
func (b *binding) give(i int, x cuda.Span) {
	if b.entry.bytes += x.Bytes; x.Bytes > 0 {
		b.add("ncclSend", b.lib.send, uintptr(x.P), uintptr(x.Bytes), bytesType, uintptr(i))
	}
}

func (b *binding) take(i int, x cuda.Span) {
	if x.Bytes > 0 {
		b.add("ncclRecv", b.lib.recv, uintptr(x.P), uintptr(x.Bytes), bytesType, uintptr(i))
	}
}

// keep is what this rank gives itself.
func (b *binding) keep(out, in cuda.Span) {
	if out.Bytes != in.Bytes {
		b.fail("this rank gives itself %d bytes and has room for %d", in.Bytes, out.Bytes)
	}
	if out.P != in.P && in.Bytes > 0 {
		b.copies = append(b.copies, func() error { return b.stream.Copy(out.P, in.P, in.Bytes) })
	}
}

// fits checks that there is a span a member.
func (b *binding) fits(spans []cuda.Span) bool {
	if b.bad == nil && len(spans) != len(b.Ranks) {
		b.fail("%d spans for %d members", len(spans), len(b.Ranks))
	}
	return b.bad == nil
}

// AllGatherOn gathers tensors over g. Equal parts that follow each other in memory go by NCCL's own, others by sends;
// those that lie in a window of g, this rank's in its place, by copy engines.
func (r *Rank) AllGatherOn(s *cuda.Stream, g comm.Group, what string, tensors ...cuda.Gathered) (cuda.Work, error) {
	b := r.begin(s, g, "all_gather", what)
	for _, t := range tensors {
		switch {
		case !b.fits(t.Out):
		case t.Out[b.me].Bytes != t.Mine.Bytes:
			b.fail("this rank gives %d bytes and has room for %d", t.Mine.Bytes, t.Out[b.me].Bytes)
		case !cuda.Adjacent(t.Out):
			b.gatherUneven(t)
		case t.Mine.Bytes > 0:
			b.entry.bytes += t.Mine.Bytes
			b.addOn(b.windowOf(t), "ncclAllGather", b.lib.allGather, uintptr(t.Mine.P), uintptr(t.Out[0].P), uintptr(t.Mine.Bytes), bytesType)
		}
	}
	return b.done()
}

func (b *binding) gatherUneven(t cuda.Gathered) {
	for i, out := range t.Out {
		if i == b.me {
			b.keep(out, t.Mine)
			continue
		}
		b.give(i, t.Mine)
		b.take(i, out)
	}
}

// ReduceScatterOn reduces tensors over g and leaves each member its piece. Uneven pieces are reduced each to its member.
func (r *Rank) ReduceScatterOn(s *cuda.Stream, g comm.Group, what string, dt dtype.DType, op comm.Op, tensors ...cuda.Scattered) (cuda.Work, error) {
	b := r.begin(s, g, "reduce_scatter", what)
	dataType, redOp, err := reduction(dt, op)
	if err != nil {
		b.fail("%v", err)
	}
	for _, t := range tensors {
		switch {
		case !b.fits(t.Pieces):
		case t.Pieces[b.me].Bytes != t.Out.Bytes:
			b.fail("this rank gives itself %d bytes and has room for %d", t.Pieces[b.me].Bytes, t.Out.Bytes)
		case !cuda.Adjacent(t.Pieces):
			b.scatterUneven(t, dataType, redOp, dt.Size())
		case t.Out.Bytes > 0:
			b.entry.bytes += t.Out.Bytes * len(t.Pieces)
			b.add("ncclReduceScatter", b.lib.reduceScatter, uintptr(t.Pieces[0].P), uintptr(t.Out.P), uintptr(t.Out.Bytes/dt.Size()), dataType, redOp)
		}
	}
	return b.done()
}

func (b *binding) scatterUneven(t cuda.Scattered, dataType, redOp uintptr, size int) {
	for i, piece := range t.Pieces {
		if b.entry.bytes += piece.Bytes; piece.Bytes == 0 {
			continue
		}
		out := piece.P // looked at by member i alone
		if i == b.me {
			out = t.Out.P
		}
		b.add("ncclReduce", b.lib.reduce, uintptr(piece.P), uintptr(out), uintptr(piece.Bytes/size), dataType, redOp, uintptr(i))
	}
}

// AllReduceOn gives all members the reduction of tensors over g.
func (r *Rank) AllReduceOn(s *cuda.Stream, g comm.Group, what string, dt dtype.DType, op comm.Op, tensors ...cuda.Reduced) (cuda.Work, error) {
	b := r.begin(s, g, "all_reduce", what)
	dataType, redOp, err := reduction(dt, op)
	if err != nil {
		b.fail("%v", err)
	}
	for _, t := range tensors {
		switch {
		case t.In.Bytes != t.Out.Bytes:
			b.fail("%d bytes become %d", t.In.Bytes, t.Out.Bytes)
		case t.In.Bytes > 0:
			b.entry.bytes += t.In.Bytes
			b.add("ncclAllReduce", b.lib.allReduce, uintptr(t.In.P), uintptr(t.Out.P), uintptr(t.In.Bytes/dt.Size()), dataType, redOp)
		}
	}
	return b.done()
}

// AllToAllOn fills out[i] with member i's in[me].
func (r *Rank) AllToAllOn(s *cuda.Stream, g comm.Group, what string, in, out []cuda.Span) (cuda.Work, error) {
	b := r.begin(s, g, "all_to_all", what)
	if b.fits(in) && b.fits(out) {
		b.keep(out[b.me], in[b.me])
		for i := range in {
			if i != b.me {
				b.give(i, in[i])
				b.take(i, out[i])
			}
		}
	}
	return b.done()
}

// SendOn sends to member to of g, RecvOn receives from member from, in the order of sending.
func (r *Rank) SendOn(s *cuda.Stream, g comm.Group, what string, to int, x cuda.Span) (cuda.Work, error) {
	b := r.begin(s, g, "send", what)
	b.entry.group += ", to member " + strconv.Itoa(to)
	b.give(to, x)
	return b.done()
}

func (r *Rank) RecvOn(s *cuda.Stream, g comm.Group, what string, from int, x cuda.Span) (cuda.Work, error) {
	b := r.begin(s, g, "recv", what)
	b.entry.group += ", from member " + strconv.Itoa(from)
	b.entry.bytes = x.Bytes
	b.take(from, x)
	return b.done()
}

// done makes the work: the copies and the calls, between the marks by which the watch sees what is under way.
func (b *binding) done() (cuda.Work, error) {
	if b.bad != nil {
		return nil, b.bad
	}
	lane, err := b.laneOf(b.stream)
	if err != nil {
		return nil, err
	}
	number := lane.add(b.entry)
	return func() error {
		if err := b.wire.inbox.Err(); err != nil {
			return err
		}
		err := b.mark(lane, b.stream, started, number)
		for i := 0; i < len(b.copies) && err == nil; i++ {
			err = b.copies[i]()
		}
		if err == nil {
			err = b.together(b.calls)
		}
		if err == nil {
			err = b.mark(lane, b.stream, finished, number)
		}
		if err != nil {
			return b.failed(exit.Lost.Errorf("rank %d: %v: %w", b.Rank.Rank(), b.entry, err))
		}
		return nil
	}, nil
}
