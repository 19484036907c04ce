package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"titan/libtitan/alloc"
)

// Report is what a device's trace says. Its JSON is part of the tools' contract.
type Report struct {
	Device         int              `json:"device"`
	Peak           alloc.Counts     `json:"peak"` // each counter's own maximum
	End            alloc.Counts     `json:"end"`
	AtPeakActive   alloc.Counts     `json:"at_peak_active"`
	Counterfactual int64            `json:"counterfactual_peak_bytes"` // of active, had every free completed when it was requested
	History        History          `json:"history"`
	Notes          []string         `json:"notes"`
	PeakEvent      int              `json:"peak_event"`             // index of the event of peak active, -1: before the first
	PeakTime       int64            `json:"peak_time_us,omitempty"` // when it was
	Events         int              `json:"events"`
	Deferred       Deferred         `json:"deferred_frees"`
	Holders        []Holder         `json:"holders"` // by active bytes at peak active, then by their most pending bytes
	Categories     []CategoryUse    `json:"categories"`
	Streams        []StreamUse      `json:"streams"`
	Fragments      map[string]Space `json:"fragmentation"` // at peak_active and at end
	Timeline       *Timeline        `json:"-"`
}

// History says whether the trace tells all.
type History string

// The values of History.
const (
	Full History = "full"
	Cut  History = "cut"  // something lived before the first event
	None History = "none" // no event
)

// Deferred are the frees that did not complete when they were requested.
type Deferred struct {
	Count      int   `json:"count"`
	MeanMicros int64 `json:"mean_us"`
	MaxMicros  int64 `json:"max_us"`
	MaxMallocs int   `json:"max_allocs_meanwhile"`
	Open       int   `json:"open"` // that had not completed at the end
}

// Holder is who asked for memory, and what it holds at peak active.
type Holder struct {
	Owner         string  `json:"owner"`
	Category      string  `json:"category"`
	Active        int64   `json:"active_bytes"`
	Allocated     int64   `json:"allocated_bytes"`
	Pending       int64   `json:"pending_bytes"`
	Blocks        int     `json:"blocks"`
	PendingBlocks int     `json:"pending_blocks"`
	PeakActive    int64   `json:"peak_active_bytes"` // its own, whenever
	PeakPending   int64   `json:"peak_pending_bytes"`
	Depth         int     `json:"peak_pending_blocks"`
	Frames        []Frame `json:"frames"`

	id int32
}

// CategoryUse is a category's bytes at peak active.
type CategoryUse struct {
	Name    string `json:"category"`
	Active  int64  `json:"active_bytes"`
	Pending int64  `json:"pending_bytes"`
}

// StreamUse is a stream's counters.
type StreamUse struct {
	Stream alloc.Stream `json:"stream"`
	Peak   alloc.Counts `json:"peak"`
	End    alloc.Counts `json:"end"`
}

// Space is memory that is reserved and holds nothing.
type Space struct {
	Free        int64 `json:"free_bytes"`         // cached in pools
	Largest     int64 `json:"largest_free_bytes"` // in one piece
	Stuck       int64 `json:"stuck_bytes"`        // of Free, in segments that something else keeps in use: torch's inactive_split_bytes
	Slack       int64 `json:"slack_bytes"`        // within blocks, beyond the rounded request
	SlackBlocks int   `json:"slack_blocks"`       // that were too small to split
	Rounding    int64 `json:"rounding_bytes"`     // within blocks, from the request to its rounded size
	Pieces      int   `json:"free_pieces"`
}

// Analyze plays device d of s. Nothing in a file can make it fail; what does not fit together is in the notes.
func Analyze(s *Snapshot, d *Device) *Report {
	b := newBase(s, d)
	r := &Report{Device: d.Index, Events: blockEvents(d.Trace), PeakEvent: -1, Fragments: map[string]Space{}, Notes: []string{}}
	l := newLedger(s, d, b)
	t := newTimeline(d)
	r.Timeline = t
	t.sample(-1, l)
	for i := 0; i < len(d.Trace); {
		at, before := i, l.meter.Peak.Active
		i += l.step(i)
		if l.meter.Peak.Active > before {
			r.PeakEvent, r.PeakTime = at, d.Trace[at].Time
		}
		t.sample(at, l)
	}
	r.Peak, r.End, r.AtPeakActive = l.meter.Peak, l.meter.Now, l.meter.AtPeakActive
	r.Counterfactual = r.Peak.Allocated
	r.Deferred = l.delays.report()
	for _, u := range l.uses {
		r.Deferred.Open += u.PendingBlocks
	}
	r.Fragments["end"] = l.space()
	r.streams(l)
	r.history(s, d, b, l)
	r.atPeak(s, d, b, l, t)
	return r
}

func (d *delays) report() Deferred {
	out := Deferred{Count: d.Count, MaxMicros: d.MaxMicros, MaxMallocs: d.MaxMallocs}
	if d.Timed > 0 {
		out.MeanMicros = d.Micros / int64(d.Timed)
	}
	return out
}

// atPeak plays the trace again: up to peak active for who holds what there, and on for the timeline's layers. peaks
// is the ledger at the end of the first time.
func (r *Report) atPeak(s *Snapshot, d *Device, b *base, peaks *ledger, t *Timeline) {
	l := newLedger(s, d, b)
	t.follow(s, peaks)
	done := func(at int) {
		if at == r.PeakEvent {
			r.Fragments["peak_active"] = l.space()
			r.holders(s, l, peaks)
		}
		t.layers(at, l)
	}
	done(-1)
	for i := 0; i < len(d.Trace); {
		at := i
		i += l.step(i)
		done(at)
	}
}

func (r *Report) holders(s *Snapshot, now, peaks *ledger) {
	for id := range now.uses {
		u, top := &now.uses[id], &peaks.uses[id]
		if u.Active == 0 && top.PeakPending == 0 {
			continue
		}
		o := &s.Owners[id]
		r.Holders = append(r.Holders, Holder{
			Owner: o.String(), Category: o.Category(), Frames: append([]Frame{}, o.Frames...), Active: u.Active, Allocated: u.Active - u.Pending, Pending: u.Pending,
			Blocks: u.Blocks, PendingBlocks: u.PendingBlocks, PeakActive: top.PeakActive, PeakPending: top.PeakPending, Depth: top.Depth, id: int32(id),
		})
	}
	slices.SortStableFunc(r.Holders, func(x, y Holder) int {
		return cmp.Or(cmp.Compare(y.Active, x.Active), cmp.Compare(y.PeakPending, x.PeakPending))
	})
	for id, u := range now.labels {
		if u.Active > 0 {
			r.Categories = append(r.Categories, CategoryUse{cmp.Or(s.Labels[id], "before the trace"), u.Active, u.Pending})
		}
	}
	slices.SortStableFunc(r.Categories, func(x, y CategoryUse) int { return cmp.Compare(y.Active, x.Active) })
}

func (r *Report) streams(l *ledger) {
	for _, s := range slices.Sorted(maps.Keys(l.streams)) {
		if m := l.streams[s]; m.Peak != (alloc.Counts{}) {
			r.Streams = append(r.Streams, StreamUse{s, m.Peak, m.Now})
		}
	}
}

// history says how far the trace can be trusted.
func (r *Report) history(s *Snapshot, d *Device, b *base, l *ledger) {
	note := func(format string, args ...any) { r.Notes = append(r.Notes, fmt.Sprintf(format, args...)) }
	switch {
	case r.Events == 0:
		r.History = None
		note("no history was recorded: only the state at the end is known (torch.cuda.memory._record_memory_history() turns it on)")
	case len(b.blocks) > 0:
		r.History = Cut
		note("the history does not begin at an empty cache: %s without allocation, %s older than the history; the peak before the window is unknown",
			count(b.freed, "free"), count(b.older, "live block"))
	default:
		r.History = Full
	}
	if l.odd > 0 {
		note("%s that did not fit the others: passed over", count(l.odd, "event"))
	}
	if n := l.mismatches(d); n > 0 && r.Events > 0 {
		note("%s at the end of the trace other than in the segments: another thread may have gone on while the snapshot was taken", count(n, "block"))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// mismatches counts the blocks whose state or size at the end is another than the segments say.
func (l *ledger) mismatches(d *Device) (n int) {
	if len(d.Segments) == 0 {
		return 0
	}
	inUse := 0
	for _, s := range d.Segments {
		for _, b := range s.Blocks {
			if b.State == alloc.Inactive {
				continue
			}
			inUse++
			if p := l.pieces[b.Addr]; p == nil || p.state != b.State || p.size != b.Size {
				n++
			}
		}
	}
	blocks := 0
	for i := range l.uses {
		blocks += l.uses[i].Blocks
	}
	return max(n, blocks-inUse)
}

// space measures what is reserved and empty now.
func (l *ledger) space() Space {
	var s Space
	for _, p := range l.pieces {
		if p.state != alloc.Inactive {
			rounded := min(l.rules.Round(max(p.requested, 1)), p.size)
			s.Rounding += rounded - min(p.requested, rounded)
			if p.size > rounded {
				s.Slack += p.size - rounded
				s.SlackBlocks++
			}
			continue
		}
		s.Free += p.size
		s.Pieces++
		s.Largest = max(s.Largest, p.size)
		if !p.expandable && (p.prev != nil || p.next != nil) {
			s.Stuck += p.size
		}
	}
	return s
}
