package main

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"titan/libtitan/alloc"
	"titan/libtitan/pipeline"
	"titan/libtitan/plan"
	"titan/libtitan/snapshot"
)

// arenaReport is what a rank holds, in bytes, whose values have places in one arena. Its counters are those of every report of
// memprof: an arena is reserved whole, and nothing in it waits for a stream.
type arenaReport struct {
	Rank           int              `json:"rank"`
	As             string           `json:"as_on"` // whose memory: CPU ranks, or the GPU's name
	Peak           alloc.Counts     `json:"peak"`
	End            alloc.Counts     `json:"end"`
	Counterfactual int64            `json:"counterfactual_peak_bytes"`
	History        snapshot.History `json:"history"`
	Steps          int              `json:"steps"`
	PeakStep       int              `json:"peak_step"`
	PeakAction     string           `json:"peak_action"` // as a schedule has it: 0B0
	Params         int64            `json:"params_bytes"`
	Grads          int64            `json:"grads_bytes"` // 0 where they share the arena
	Optimizer      int64            `json:"optimizer_bytes"`
	Constants      int64            `json:"constants_bytes"`
	Copies         int64            `json:"copies_bytes"`  // of parameters, in the type they are computed in
	Windows        int64            `json:"windows_bytes"` // where FSDP gathers into
	Live           int64            `json:"live_bytes"`    // in the arena, at the peak
	Arena          int64            `json:"arena_bytes"`
	Total          int64            `json:"total_bytes"`
	Holders        []arenaHolder    `json:"holders"` // of the arena, at the peak

	during string // PeakAction in words
	shared bool   // gradients are in the arena
}

// arenaHolder is a module and what it holds.
type arenaHolder struct {
	Owner  string `json:"owner"`
	Active int64  `json:"active_bytes"`
	Blocks int    `json:"blocks"`
}

// newArenaReport measures prog, which lies as on where it runs.
func newArenaReport(rank int, where string, prog *plan.Program) *arenaReport {
	u := plan.Measure(prog)
	at := prog.Steps[u.PeakStep].Action
	r := &arenaReport{
		Rank: rank, As: where, History: snapshot.Full, Steps: len(prog.Steps), PeakStep: u.PeakStep, PeakAction: at.String(), during: during(at),
		Params: int64(u.Fixed[plan.Param]), Grads: int64(u.Fixed[plan.Grad]), Optimizer: 2 * int64(u.Fixed[plan.Param]), Constants: int64(u.Fixed[plan.Const]),
		Copies: int64(prog.CopyBytes()), Windows: int64(prog.WindowBytes), Live: int64(u.PeakBytes), Arena: int64(prog.ArenaBytes), shared: prog.GradsInArena,
	}
	fixed := r.Params + r.Grads + r.Optimizer + r.Constants + r.Copies + r.Windows
	r.Total = fixed + r.Arena
	r.Peak, r.End = held(fixed+r.Live, r.Total), held(fixed, r.Total)
	r.Counterfactual = r.Peak.Active
	for _, h := range u.Holders {
		r.Holders = append(r.Holders, arenaHolder{Owner: cmp.Or(h.FQN, "loss"), Active: int64(h.Bytes), Blocks: h.Values})
	}
	return r
}

// held is the counters of live bytes in places that take reserved.
func held(live, reserved int64) alloc.Counts {
	return alloc.Counts{Requested: live, Allocated: live, Active: live, Reserved: reserved}
}

// during says when the steps of a are, and how a schedule writes it.
func during(a pipeline.Action) string {
	work, known := map[pipeline.Kind]string{pipeline.Forward: "forward", pipeline.Backward: "backward", pipeline.InputGrad: "gradient of the input", pipeline.WeightGrad: "gradients of the weights"}[a.Kind]
	if !known {
		return "before or after all microbatches"
	}
	return fmt.Sprintf("in the %s of stage %d, microbatch %d (%v)", work, a.Stage, a.Microbatch, a)
}

// print writes the table of a rank: its totals, then who holds the arena at its peak, top of them.
func (r *arenaReport) print(w io.Writer, top int) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "rank %d, as on %s: peak at step %d of the plan's %d, %s\n", r.Rank, r.As, r.PeakStep, r.Steps, r.during)
	in := "activations"
	if r.shared {
		in = "activations and grads"
	}
	for _, row := range []struct {
		name  string
		bytes int64
		skip  bool
	}{
		{"params", r.Params, false},
		{"grads", r.Grads, r.shared},
		{"optimizer", r.Optimizer, false},
		{"constants", r.Constants, false},
		{"copies of params", r.Copies, r.Copies == 0},
		{"windows of gathered params", r.Windows, r.Windows == 0},
		{in + ", live at peak", r.Live, false},
		{in + ", arena", r.Arena, false},
		{"total", r.Total, false},
	} {
		if !row.skip {
			fmt.Fprintf(t, "%s\t%s\t%d\t\n", row.name, human(row.bytes), row.bytes)
		}
	}
	fmt.Fprintf(t, "held at peak by\t\t\t\n")
	for _, h := range r.Holders[:min(top, len(r.Holders))] {
		fmt.Fprintf(t, "%s\t%s\t%d\t\n", h.Owner, human(h.Active), h.Active)
	}
	return t.Flush()
}
