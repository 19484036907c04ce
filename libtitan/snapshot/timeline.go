package snapshot

import (
	"cmp"
	"slices"

	"titan/libtitan/alloc"
)

// The size of a timeline, whatever the trace's.
const (
	maxPoints = 1200
	maxLayers = 40
)

// Timeline is a trace cut into at most maxPoints stretches of equally many events.
type Timeline struct {
	Points []Point
	Layers []Layer // the owners with the largest peaks
	Others Layer   // all other owners together

	stretch int // events a point
}

// Point is a stretch of events.
type Point struct {
	Event int          // the one after which Active is highest in the stretch, -1 is before the first
	Time  int64        // its time, microseconds
	Max   alloc.Counts // each counter's own maximum
	At    alloc.Counts // all, at Event
}

// Layer is what an owner holds at each point's event.
type Layer struct {
	Owner   int32
	Active  []int64 // bytes
	Pending []int64 // of which freed, and not reusable
}

func newTimeline(d *Device) *Timeline {
	return &Timeline{stretch: max(1, (len(d.Trace)+maxPoints-1)/maxPoints)}
}

// sample adds the state after event at.
func (t *Timeline) sample(at int, l *ledger) {
	k := max(at, 0) / t.stretch
	for k > len(t.Points) { // the event before was one of two
		t.Points = append(t.Points, t.Points[len(t.Points)-1])
	}
	if k == len(t.Points) {
		t.Points = append(t.Points, Point{Event: at, At: l.meter.Now, Max: l.meter.Now})
	}
	p := &t.Points[len(t.Points)-1]
	if l.meter.Now.Active > p.At.Active {
		p.Event, p.At = at, l.meter.Now
	}
	p.Max = maxCounts(p.Max, l.meter.Now)
}

func maxCounts(a, b alloc.Counts) alloc.Counts {
	return alloc.Counts{
		Requested: max(a.Requested, b.Requested), Allocated: max(a.Allocated, b.Allocated), Active: max(a.Active, b.Active),
		Reserved: max(a.Reserved, b.Reserved), Pending: max(a.Pending, b.Pending),
	}
}

// follow chooses the owners that get a layer of their own, by what they held at most; what was pending of it counts twice,
// for that is what is looked for.
func (t *Timeline) follow(s *Snapshot, peaks *ledger) {
	ids := make([]int32, 0, len(s.Owners))
	for id := range s.Owners {
		if peaks.uses[id].PeakActive > 0 {
			ids = append(ids, int32(id))
		}
	}
	weight := func(id int32) int64 { return peaks.uses[id].PeakActive + peaks.uses[id].PeakPending }
	slices.SortStableFunc(ids, func(a, b int32) int { return cmp.Compare(weight(b), weight(a)) })
	for _, id := range ids[:min(len(ids), maxLayers)] {
		t.Layers = append(t.Layers, Layer{Owner: id})
	}
}

// layers notes what the owners hold after event at, if it is a point's.
func (t *Timeline) layers(at int, l *ledger) {
	for {
		k := len(t.Others.Active)
		if k == len(t.Points) || t.Points[k].Event != at {
			return
		}
		if len(l.trace) > 0 {
			t.Points[k].Time = l.trace[max(at, 0)].Time
		}
		active, pending := l.meter.Now.Active, l.meter.Now.Pending
		for i := range t.Layers {
			y := &t.Layers[i]
			u := &l.uses[y.Owner]
			y.Active, y.Pending = append(y.Active, u.Active), append(y.Pending, u.Pending)
			active, pending = active-u.Active, pending-u.Pending
		}
		t.Others.Active, t.Others.Pending = append(t.Others.Active, active), append(t.Others.Pending, pending)
	}
}
