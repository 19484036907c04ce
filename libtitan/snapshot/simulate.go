package snapshot

import (
	"slices"

	"titan/libtitan/alloc"
	"titan/libtitan/plan"
)

// Recorder collects a trace in memory: its Event suits alloc.Options.Trace.
type Recorder struct {
	b      *builder
	events []Event
}

// NewRecorder starts a trace of an allocator with settings c.
func NewRecorder(c alloc.Config) *Recorder {
	r := &Recorder{b: newBuilder()}
	r.b.config = c
	return r
}

// Event adds an event.
func (r *Recorder) Event(e alloc.Event) {
	out := Event{Action: e.Action, Addr: e.Addr, Size: e.Size, Stream: e.Stream, Other: e.Other, Time: e.Time}
	if e.Owner != "" {
		out.Owner = r.b.named(e.Owner)
	}
	r.events = append(r.events, out)
}

// Snapshot ends the trace.
func (r *Recorder) Snapshot() (*Snapshot, error) {
	r.b.trace(r.events)
	return r.b.finish()
}

// simulation is a Keeper in the allocator's twin whose deferred frees complete when runAhead says.
type simulation struct {
	*plan.Cached
	device   *alloc.Virtual
	runAhead int
	mallocs  int
	uses     map[*plan.Slot][]alloc.Stream
	frees    []deferredFree // the oldest first
}

type deferredFree struct {
	mallocs int // there had been so many
	streams []alloc.Stream
}

// Simulate plays optimizer steps of prog through the allocator's twin: its values on the compute stream, those of
// collectives used on others. A step finds in the cache what the one before it left, so the first tells less than two do.
// Under RecordStream a deferred free completes runAhead allocations later, and with 0 not before the step's end: the host
// is that far ahead.
func Simulate(prog *plan.Program, c alloc.Config, steps, runAhead int) (*Snapshot, error) {
	record := NewRecorder(c)
	clock := int64(0)
	twin, device, err := plan.NewTwin(prog, alloc.Options{Config: c, Trace: record.Event, Now: func() int64 { clock++; return clock }})
	if err != nil {
		return nil, err
	}
	s := &simulation{Cached: twin, device: device, runAhead: runAhead, uses: map[*plan.Slot][]alloc.Stream{}}
	values := plan.Follow(prog, s, c.Policy == alloc.SameStream)
	for range steps {
		for i := range prog.Steps {
			if _, err := values.Begin(i); err != nil {
				return nil, err
			}
			if err := values.End(i); err != nil {
				return nil, err
			}
		}
		values.Join()
	}
	return record.Snapshot()
}

// Take completes the frees whose time has come, then takes a block.
func (s *simulation) Take(v *plan.Slot, owner string) error {
	s.mallocs++
	for s.runAhead > 0 && len(s.frees) > 0 && s.mallocs > s.frees[0].mallocs+s.runAhead {
		for _, on := range s.frees[0].streams {
			s.device.Finish(on, 1)
		}
		s.frees = s.frees[1:]
	}
	return s.Cached.Take(v, owner)
}

// End completes all frees.
func (s *simulation) End() {
	s.frees = nil
	s.Cached.End()
}

// Use notes which streams a free will wait for.
func (s *simulation) Use(v *plan.Slot, on alloc.Stream) {
	if !slices.Contains(s.uses[v], on) {
		s.uses[v] = append(s.uses[v], on)
	}
	s.Cached.Use(v, on)
}

// Drop frees a block.
func (s *simulation) Drop(v *plan.Slot) error {
	if streams := s.uses[v]; streams != nil {
		s.frees = append(s.frees, deferredFree{s.mallocs, streams})
		delete(s.uses, v)
	}
	return s.Cached.Drop(v)
}
