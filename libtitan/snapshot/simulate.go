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

// Simulation says how a program is played.
type Simulation struct {
	Config   alloc.Config
	Steps    int   // optimizer steps; one finds in the cache what the one before it left, so the first tells less than two do
	RunAhead int   // under RecordStream a deferred free completes that many allocations later; 0: no such limit
	Pace     *Pace // and when its GPU is done; nil: not before the step's end, so far is the host ahead
}

// simulation is a Keeper in the allocator's twin.
type simulation struct {
	*plan.Cached
	Simulation
	clock   clock
	device  *alloc.Virtual
	mallocs int
	uses    map[*plan.Slot][]alloc.Stream
	frees   map[alloc.Stream][]deferredFree // the oldest first
}

type deferredFree struct {
	mallocs int     // there had been so many
	at      float64 // when its stream has come there
}

// Run plays prog through the allocator's twin: its values on the compute stream, those of collectives used on others.
func (o Simulation) Run(prog *plan.Program) (*Snapshot, error) {
	record := NewRecorder(o.Config)
	ticks := int64(0)
	twin, device, err := plan.NewTwin(prog, alloc.Options{Config: o.Config, Trace: record.Event, Now: func() int64 { ticks++; return ticks }})
	if err != nil {
		return nil, err
	}
	s := &simulation{Cached: twin, Simulation: o, device: device, uses: map[*plan.Slot][]alloc.Stream{}, frees: map[alloc.Stream][]deferredFree{}}
	if o.Pace != nil {
		s.clock = clock{Pace: *o.Pace, busy: map[alloc.Stream]float64{}, done: map[int]float64{}}
	}
	values := plan.Follow(prog, s, o.Config.Policy == alloc.SameStream)
	for range o.Steps {
		for i := range prog.Steps {
			after, err := values.Begin(i)
			if err != nil {
				return nil, err
			}
			if o.Pace != nil {
				s.clock.launch(prog, i, values.Stream(i), after)
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
	for on, frees := range s.frees {
		n := 0
		for n < len(frees) && s.passed(frees[n]) {
			n++
		}
		s.device.Finish(on, n)
		s.frees[on] = frees[n:]
	}
	return s.Cached.Take(v, owner)
}

func (s *simulation) passed(f deferredFree) bool {
	return s.RunAhead > 0 && s.mallocs > f.mallocs+s.RunAhead || s.Pace != nil && f.at <= s.clock.host
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
	for _, on := range s.uses[v] {
		s.frees[on] = append(s.frees[on], deferredFree{s.mallocs, s.clock.busy[on]})
	}
	delete(s.uses, v)
	return s.Cached.Drop(v)
}

// End completes all frees.
func (s *simulation) End() {
	clear(s.frees)
	s.clock.sync()
	s.Cached.End()
}
