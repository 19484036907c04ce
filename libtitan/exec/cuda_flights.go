package exec

import (
	"errors"

	"titan/libtitan/device/cuda"
	"titan/libtitan/plan"
)

// flights are moves on a stream of their own, beside what is computed. A step that touches the memory of one waits for
// it, whatever the plan says of lifetimes; those before it on the stream have ended with it then.
type flights struct {
	e      *cuda.Engine
	stream *cuda.Stream
	list   []*flight
	landed int // of list, those that were waited for
}

type flight struct {
	reads, writes []cuda.Span
	ready, done   *cuda.Event
}

// newFlight binds w, which is on the flights' stream, to run beside what follows.
func (f *flights) newFlight(w cuda.Work) (cuda.Work, error) {
	x := &flight{}
	var err error
	if x.ready, err = f.e.NewEvent(false); err != nil {
		return nil, err
	}
	if x.done, err = f.e.NewEvent(false); err != nil {
		return nil, err
	}
	f.list = append(f.list, x)
	return func() error {
		if err := errors.Join(f.e.Stream.Record(x.ready), f.stream.Wait(x.ready)); err != nil {
			return err
		}
		if err := w(); err != nil {
			return err
		}
		return f.stream.Record(x.done)
	}, nil
}

// before is w after the flights whose memory it touches.
func (f *flights) before(w cuda.Work, reads, writes []cuda.Span) cuda.Work {
	for i := len(f.list) - 1; i >= f.landed; i-- {
		x := f.list[i]
		if overlap(reads, x.writes) || overlap(writes, x.writes) || overlap(writes, x.reads) {
			return f.land(w, i)
		}
	}
	return w
}

// land is w after flight i.
func (f *flights) land(w cuda.Work, i int) cuda.Work {
	f.landed = i + 1
	done := f.list[i].done
	return func() error {
		if err := f.e.Stream.Wait(done); err != nil {
			return err
		}
		return w()
	}
}

// end is w after all flights.
func (f *flights) end(w cuda.Work) cuda.Work {
	if f.landed < len(f.list) {
		return f.land(w, len(f.list)-1)
	}
	return w
}

func overlap(a, b []cuda.Span) bool {
	for _, x := range a {
		for _, y := range b {
			if x.P < y.P+cuda.Ptr(y.Bytes) && y.P < x.P+cuda.Ptr(x.Bytes) {
				return true
			}
		}
	}
	return false
}

// touches is the memory that steps read and write.
func (m *CUDAMemory) touches(steps ...*plan.Step) (reads, writes []cuda.Span, err error) {
	for _, s := range steps {
		for _, list := range []struct {
			slots []*plan.Slot
			into  *[]cuda.Span
		}{{s.In, &reads}, {s.Out, &writes}} {
			for _, slot := range list.slots {
				t, err := m.at(slot)
				if err != nil {
					return nil, nil, err
				}
				*list.into = append(*list.into, t.span())
			}
		}
		if s.Scratch != nil {
			writes = append(writes, cuda.Span{P: m.arena + cuda.Ptr(s.Scratch.Offset), Bytes: s.Scratch.Bytes()})
		}
	}
	return reads, writes, nil
}
