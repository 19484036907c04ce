package main

import (
	"bytes"
	"context"
	"fmt"
	"text/tabwriter"

	"titan/libtitan/alloc"
	"titan/libtitan/snapshot"
	"titan/tools/internal/app"
)

// replayFlags say under what a trace is played again.
type replayFlags struct {
	fileFlags
	policy       string
	maxSplitSize int64
	expandable   bool
	runAhead     int
}

func replayVerb() app.Verb {
	var f replayFlags
	return app.Verb{
		Name: "replay", Args: "FILE",
		Usage:   "play a trace through the allocator's twin under other policies and settings, and compare the peaks",
		Example: "memprof replay trace.json --policy hold",
		Flags: append(f.flags(),
			app.Choice(&f.policy, []string{"record-stream", "hold", "same-stream"}, "what becomes of deferred frees (default: all of them)", "policy"),
			app.Bytes(&f.maxSplitSize, "do not split blocks of `SIZE` or more (default: as recorded)", "max-split-size"),
			app.Switch(&f.expandable, "with expandable segments (off: --expandable-segments=false; default: as recorded)", "expandable-segments"),
			app.AtLeast(&f.runAhead, 0, "deferred frees complete `N` allocations later at the latest: the host is held back", "run-ahead")),
		Run: func(_ context.Context, e *app.Env) error { return f.run(e) },
	}
}

// replayed is one way in which a trace was played.
type replayed struct {
	Policy       snapshot.Policy `json:"policy"`
	MaxSplitSize int64           `json:"max_split_size"` // 0: no limit
	Expandable   bool            `json:"expandable_segments"`
	RunAhead     int             `json:"run_ahead,omitempty"`
	Peak         alloc.Counts    `json:"peak"`
	End          alloc.Counts    `json:"end"`
	AtPeakActive alloc.Counts    `json:"at_peak_active"`
	Saves        int64           `json:"saves_reserved_bytes"` // of peak reserved, against the recorded one
}

// comparison is the JSON of replay: one play, what was recorded, and the other plays that were asked for.
type comparison struct {
	replayed
	Recorded     recorded   `json:"recorded"`
	Alternatives []replayed `json:"alternatives"`
}

type recorded struct {
	Peak alloc.Counts `json:"peak"`
	End  alloc.Counts `json:"end"`
}

func (f *replayFlags) run(e *app.Env) error {
	s, d, err := f.load(e)
	if err != nil {
		return err
	}
	was := snapshot.Analyze(s, d)
	if snapshot.Policy(f.policy) == snapshot.RecordStream && was.Deferred.Count == 0 {
		e.Log.Warn("the trace has no deferred free: nothing in it says when other streams were done, so record-stream is played as recorded")
	}
	var plays []replayed
	for _, r := range f.plays(e, s) {
		o, err := r.Run(s, d)
		if err != nil {
			return err
		}
		plays = append(plays, replayed{r.Policy, max(0, r.Config.MaxSplitSize), r.Config.Expandable, r.RunAhead, o.Peak, o.Now, o.AtPeakActive, was.Peak.Reserved - o.Peak.Reserved})
	}
	if f.json {
		return app.WriteJSON(e.Out, comparison{plays[0], recorded{was.Peak, was.End}, plays[1:]})
	}
	return writePlays(e, s.Planned, was, plays)
}

// plays lists what to try: the policy that was asked for, or all; under the settings given, or the trace's, and then
// with expandable segments the other way round.
func (f *replayFlags) plays(e *app.Env, s *snapshot.Snapshot) []snapshot.Replay {
	first := snapshot.Replay{Policy: snapshot.Policy(f.policy), Config: s.Config, RunAhead: f.runAhead, AsRecorded: true}
	if e.Given("max-split-size") {
		first.Config.MaxSplitSize, first.AsRecorded = f.maxSplitSize, f.maxSplitSize == s.Config.MaxSplitSize
	}
	if e.Given("expandable-segments") && f.expandable != s.Config.Expandable {
		first.Config.Expandable, first.AsRecorded = f.expandable, false
	}
	if f.policy != "" {
		return []snapshot.Replay{first}
	}
	var list []snapshot.Replay
	for _, p := range []snapshot.Policy{snapshot.Recorded, snapshot.Hold, snapshot.SameStream} {
		r := first
		r.Policy = p
		list = append(list, r)
	}
	if e.Given("expandable-segments") {
		return list
	}
	for _, r := range list[:2] {
		r.Config.Expandable, r.AsRecorded = !r.Config.Expandable, false
		list = append(list, r)
	}
	return list
}

// inAnAllocator says what the plays of a plan's trace are.
const inAnAllocator = "the values lay in a planned arena, where no policy has a say; the rows below it are what PyTorch's caching allocator would make of the same values"

func writePlays(e *app.Env, planned bool, was *snapshot.Report, plays []replayed) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "device %d: %d events, history %s\n", was.Device, was.Events, was.History)
	for _, n := range was.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	first, recorded := "the trace", snapshot.Recorded
	if planned {
		first, recorded = "the planned arena", "caching allocator"
		fmt.Fprintf(&b, "note: %s\n", inAnAllocator)
	}
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nPEAKS\tREQUESTED\tALLOCATED\tACTIVE\tPENDING\tRESERVED\tSAVES")
	row := func(name string, c alloc.Counts, saves string) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, human(c.Requested), human(c.Allocated), human(c.Active), human(c.Pending), human(c.Reserved), saves)
	}
	row(first, was.Peak, "")
	for _, p := range plays {
		if p.Policy == snapshot.Recorded {
			p.Policy = recorded
		}
		row(p.name(), p.Peak, saving(p.Saves))
	}
	t.Flush()
	_, err := e.Out.Write(b.Bytes())
	return err
}

func (p *replayed) name() string {
	name := string(p.Policy)
	if p.RunAhead > 0 {
		name += fmt.Sprintf(", %d ahead", p.RunAhead)
	}
	if p.MaxSplitSize > 0 {
		name += ", max split " + human(p.MaxSplitSize)
	}
	if p.Expandable {
		name += ", expandable"
	}
	return name
}

// saving is how much less is reserved.
func saving(bytes int64) string {
	switch {
	case bytes > 0:
		return human(bytes)
	case bytes < 0:
		return "costs " + human(-bytes)
	}
	return "nothing"
}
