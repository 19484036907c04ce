package exec

import (
	"errors"
	"fmt"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/plan"
)

// gpuLane is what one stage sends another in one direction, or what goes round.
type gpuLane struct {
	stream *cuda.Stream
	ready  *cuda.Event // what is sent is in its place
	done   *cuda.Event // all is sent
	last   int         // microbatch
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
