package snapshot

import (
	"cmp"

	"titan/libtitan/alloc"
	"titan/libtitan/graph"
	"titan/libtitan/op"
	"titan/libtitan/plan"
)

// The streams of a simulated rank.
const (
	computeStream alloc.Stream = iota
	commStream
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
		out.Owner = r.b.owner([]int32{r.b.frame(Frame{Name: e.Owner})})
	}
	r.events = append(r.events, out)
}

// Snapshot ends the trace.
func (r *Recorder) Snapshot() (*Snapshot, error) {
	r.b.trace(r.events)
	return r.b.finish()
}

// simulation plays a program's values through an allocator.
type simulation struct {
	twin     *alloc.Allocator
	device   *alloc.Virtual
	runAhead int
	blocks   map[*plan.Slot]*alloc.Block
	waits    map[*plan.Slot]bool // results of collectives that compute has not waited for
	mallocs  int
	frees    []int // of deferred frees, the oldest first: how many allocations there had been
	err      error
}

// Simulate plays one optimizer step of prog through the allocator's twin, its values on the compute stream, those of
// collectives used on another. AdamW's moments are two more of each parameter. Under RecordStream a deferred free
// completes runAhead allocations later, and with 0 not before the step's end: the host is that far ahead.
func Simulate(prog *plan.Program, c alloc.Config, runAhead int) (*Snapshot, error) {
	record := NewRecorder(c)
	s := &simulation{device: &alloc.Virtual{}, runAhead: runAhead, blocks: map[*plan.Slot]*alloc.Block{}, waits: map[*plan.Slot]bool{}}
	var err error
	clock := int64(0)
	s.twin, err = alloc.New(s.device, alloc.Options{Config: c, Trace: record.Event, Now: func() int64 { clock++; return clock }})
	if err != nil {
		return nil, err
	}
	s.fixed(prog)
	for i := range prog.Steps {
		s.step(i, &prog.Steps[i])
	}
	if s.err != nil {
		return nil, s.err
	}
	return record.Snapshot()
}

// fixed makes what lives as long as the program.
func (s *simulation) fixed(prog *plan.Program) {
	type name struct {
		class plan.Class
		name  string
	}
	made := map[name]bool{}
	for i := range prog.Steps {
		for _, v := range values(&prog.Steps[i]) {
			key := name{v.Class, v.Name}
			if v.Class != plan.Param && v.Class != plan.Grad || made[key] {
				continue
			}
			made[key] = true
			s.malloc(v.Bytes(), v.Name)
			if v.Class == plan.Param {
				s.malloc(v.Bytes(), "optimizer."+v.Name)
				s.malloc(v.Bytes(), "optimizer."+v.Name)
			}
		}
	}
	if prog.ConstBytes > 0 {
		s.malloc(prog.ConstBytes, "constants")
	}
}

// values are the slots that a step touches, each with its own memory.
func values(st *plan.Step) (out []*plan.Slot) {
	for _, list := range [][]*plan.Slot{st.In, st.Out} {
		for _, v := range list {
			out = append(out, v.Root())
		}
	}
	return out
}

func (s *simulation) step(i int, st *plan.Step) {
	touched := values(st)
	remote := st.Kind == plan.Send || st.Kind == plan.Recv || st.Kind == plan.Compute && moves(st.Node)
	for _, v := range touched {
		if v.Class != plan.Arena {
			continue
		}
		if s.waits[v] && !remote {
			s.twin.Wait(computeStream, commStream)
			clear(s.waits)
		}
		if s.blocks[v] == nil && v.First == i {
			s.blocks[v] = s.malloc(v.Bytes(), cmp.Or(v.FQN, "loss"))
		}
		if b := s.blocks[v]; b != nil && remote {
			s.twin.Use(b, commStream)
			s.waits[v] = true
		}
	}
	for _, v := range touched {
		if b := s.blocks[v]; b != nil && v.Last == i {
			s.free(b)
			delete(s.blocks, v)
		}
	}
}

// moves reports whether a node is a collective.
func moves(n *graph.Node) bool {
	_, ok := n.Attr.(op.MoveAttr)
	return ok
}

func (s *simulation) malloc(bytes int, owner string) *alloc.Block {
	s.mallocs++
	for s.runAhead > 0 && len(s.frees) > 0 && s.mallocs > s.frees[0]+s.runAhead {
		s.device.Finish(commStream, 1)
		s.frees = s.frees[1:]
	}
	b, err := s.twin.Malloc(alloc.Request{Bytes: int64(max(1, bytes)), Stream: computeStream, Owner: owner})
	s.err = cmp.Or(s.err, err)
	return b
}

func (s *simulation) free(b *alloc.Block) {
	pending := s.twin.Stats().Now.Pending
	s.err = cmp.Or(s.err, s.twin.Free(b))
	if s.twin.Stats().Now.Pending > pending {
		s.frees = append(s.frees, s.mallocs)
	}
}
