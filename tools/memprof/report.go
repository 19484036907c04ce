package main

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"titan/libtitan/alloc"
	"titan/libtitan/manifest"
	"titan/libtitan/snapshot"
	"titan/tools/internal/app"
)

func human(n int64) string { return manifest.HumanBytes(n) }

// counters are the names of alloc.Counts, in the order of every table.
var counters = []struct {
	name string
	of   func(alloc.Counts) int64
}{
	{"requested", func(c alloc.Counts) int64 { return c.Requested }},
	{"allocated", func(c alloc.Counts) int64 { return c.Allocated }},
	{"active", func(c alloc.Counts) int64 { return c.Active }},
	{"reserved", func(c alloc.Counts) int64 { return c.Reserved }},
	{"pending on streams", func(c alloc.Counts) int64 { return c.Pending }},
}

// writeReport prints r for people.
func writeReport(out io.Writer, r *snapshot.Report, top int) error {
	w := new(bytes.Buffer)
	fmt.Fprintf(w, "device %d: %d events, history %s\n", r.Device, r.Events, r.History)
	for _, n := range r.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	fmt.Fprintln(w)
	writeCounts(w, r)
	fmt.Fprintf(w, "\n%s\n", verdict(r))
	writeHolders(w, r, top)
	writeUses(w, r)
	_, err := out.Write(w.Bytes())
	return err
}

func writeCounts(w io.Writer, r *snapshot.Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "bytes\tcurrent\tpeak\t\tat peak active\t")
	for _, c := range counters {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t\n", c.name, app.Grouped(c.of(r.End)), app.Grouped(c.of(r.Peak)), human(c.of(r.Peak)), app.Grouped(c.of(r.AtPeakActive)))
	}
	t.Flush()
}

// verdict says in a sentence or two what stacked up.
func verdict(r *snapshot.Report) string {
	p := r.AtPeakActive
	switch {
	case r.History == snapshot.None:
		return "No history: the state at the end, and who holds it, is all that is known."
	case p.Pending == 0 && r.Peak.Pending == 0:
		return "Nothing is stacked: every free completed when it was requested."
	}
	text := fmt.Sprintf("Stacked at peak active: %s of %s (%.0f%%) had been freed and could not be reused, since another stream's event had not been seen to pass.\n"+
		"Had every free completed at once, active would peak at %s: %s less.",
		human(p.Pending), human(p.Active), 100*float64(p.Pending)/float64(max(1, p.Active)), human(r.Counterfactual), human(r.Peak.Active-r.Counterfactual))
	text += stackers(r)
	if d := r.Deferred; d.Count > 0 {
		text += fmt.Sprintf("\nDeferred frees that completed: %d, after %s on average and %s at most, while up to %d allocations went by.", d.Count, micros(d.MeanMicros), micros(d.MaxMicros), d.MaxMallocs)
	}
	if d := r.Deferred; d.Open > 0 {
		text += fmt.Sprintf("\nDeferred frees still pending at the end: %d.", d.Open)
	}
	return text
}

// stackers names those who made the most of what is pending at peak active.
func stackers(r *snapshot.Report) string {
	list := slices.Clone(r.Holders)
	slices.SortStableFunc(list, func(a, b snapshot.Holder) int { return cmp.Compare(b.Pending, a.Pending) })
	var names []string
	for _, h := range list[:min(3, len(list))] {
		if h.Pending > 0 {
			names = append(names, fmt.Sprintf("%s in %d of %s", human(h.Pending), h.PendingBlocks, h.Owner))
		}
	}
	if names == nil {
		return ""
	}
	return "\nMost of it: " + strings.Join(names, "; ") + "."
}

func micros(us int64) string {
	switch {
	case us >= 1e6:
		return fmt.Sprintf("%.2f s", float64(us)/1e6)
	case us >= 1e3:
		return fmt.Sprintf("%.1f ms", float64(us)/1e3)
	}
	return fmt.Sprintf("%d µs", us)
}

func writeHolders(w io.Writer, r *snapshot.Report, top int) {
	fmt.Fprintln(w, "\nheld at peak active, and pending at most:")
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ACTIVE\tPENDING\tBLOCKS\tMOST PENDING\tCATEGORY\tOWNER")
	for _, h := range r.Holders[:min(top, len(r.Holders))] {
		fmt.Fprintf(t, "%s\t%s\t%d\t%s in %d\t%s\t%s\n", human(h.Active), human(h.Pending), h.Blocks, human(h.PeakPending), h.Depth, h.Category, h.Owner)
	}
	if more := len(r.Holders) - top; more > 0 {
		fmt.Fprintf(t, "and %d more (--top)\n", more)
	}
	t.Flush()
}

// writeUses prints the tables of categories, streams and unused space.
func writeUses(w io.Writer, r *snapshot.Report) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "\nCATEGORY\tACTIVE\tPENDING")
	for _, c := range r.Categories {
		fmt.Fprintf(t, "%s\t%s\t%s\n", c.Name, human(c.Active), human(c.Pending))
	}
	fmt.Fprintln(t, "\nSTREAM\tPEAK ALLOCATED\tACTIVE\tRESERVED\tPENDING")
	for _, s := range r.Streams {
		fmt.Fprintf(t, "%#x\t%s\t%s\t%s\t%s\n", uint64(s.Stream), human(s.Peak.Allocated), human(s.Peak.Active), human(s.Peak.Reserved), human(s.Peak.Pending))
	}
	fmt.Fprintln(t, "\nRESERVED AND EMPTY\tFREE\tLARGEST PIECE\tSTUCK BESIDE BLOCKS\tTOO SMALL TO SPLIT\tROUNDING")
	for _, at := range []string{"peak_active", "end"} {
		s := r.Fragments[at]
		fmt.Fprintf(t, "at %s\t%s in %d\t%s\t%s\t%s in %d\t%s\n", strings.ReplaceAll(at, "_", " "), human(s.Free), s.Pieces, human(s.Largest), human(s.Stuck), human(s.Slack), s.SlackBlocks, human(s.Rounding))
	}
}
