package main

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"titan/libtitan/estimate"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

const gib = 1 << 30

// brief is a plan in a few words.
func brief(j *estimate.Job) string {
	var words []string
	d := j.Dims
	for _, a := range []struct {
		name   string
		degree int
	}{{"pp", d.PP}, {"dp_replicate", d.DPReplicate}, {"dp_shard", d.DPShard}, {"cp", d.CP}, {"tp", d.TP}, {"ep", d.EP}} {
		if a.degree > 1 {
			words = append(words, fmt.Sprintf("%s %d", a.name, a.degree))
		}
	}
	if words == nil {
		words = []string{"1 rank"}
	}
	mode := fmt.Sprintf("%s a microbatch, ac %s", manifest.Counted(j.Rows, "row"), strings.TrimSuffix(j.AC.Mode+":"+j.AC.Option, ":"))
	if d.PP > 1 {
		mode += fmt.Sprintf(", %s of %d microbatches", j.Schedule, j.NumMicrobatches)
	}
	return strings.Join(words, " x ") + " (" + mode + ")"
}

// explainRejected prints what was not looked at and why, a line each.
func explainRejected(w io.Writer, list []estimate.Rejection) {
	for _, r := range list {
		fmt.Fprintf(w, "rejected: %s\n", r.Why)
	}
}

// explainSearch prints what was found, or what came near, a line each.
func explainSearch(w io.Writer, f *estimate.Found, s *estimate.Space) {
	meshes := "meshes"
	if f.Meshes == 1 {
		meshes = "mesh"
	}
	fmt.Fprintf(w, "%s legal %s of %s on %s, %.1f GiB %s, %s\n", app.Grouped(int64(f.Meshes)), meshes, manifest.Counted(s.World, "rank"), s.Machine.Name, float64(f.Capacity)/gib, holder(&s.Machine), s.Machine.As(false))
	t := app.Table(w)
	defer t.Flush()
	if f.Plans != nil {
		fmt.Fprintln(t, "\tTOKENS/S/GPU\tMFU\tSTEP\tBUBBLE\tGIB\tPLAN\tLOSES BY")
	}
	for i, p := range f.Plans {
		e := p.Estimate
		loss := ""
		if i > 0 {
			loss = losesBy(p, f.Plans[0])
		}
		fmt.Fprintf(t, "%d\t%.0f\t%.1f%%\t%.3g s\t%.1f%%\t%.1f\t%s\t%s\n", i+1, e.TokensPerSecondPerGPU, 100*e.MFU, e.StepSeconds, 100*e.Bubble, float64(e.PeakBytes)/gib, brief(p.Job), loss)
	}
	for i, p := range f.Misses {
		fmt.Fprintf(t, "miss %d\t%s\tby %s bytes\n", i+1, brief(p.Job), app.Grouped(p.Estimate.PeakBytes-f.Capacity))
	}
}

// holder is what has the memory of a rank.
func holder(m *estimate.Machine) string {
	if m.Shared() {
		return "a rank that shares the machine's memory"
	}
	return "a GPU"
}

// numParts is how many parts of a loss are told.
const numParts = 3

// losesBy says how much slower p is than best a token, in percent of best's step, and in which parts: the largest by name,
// losses and gains, then the others together. They add up to the last digit.
func losesBy(p, best estimate.Plan) string {
	scale := p.Job.StepTokens() / best.Job.StepTokens()
	hundredths := func(ours, theirs float64) int { // of a percent
		return int(math.Round(1e4 * (ours/scale - theirs) / best.Estimate.StepSeconds))
	}
	slower := hundredths(p.Estimate.StepSeconds, best.Estimate.StepSeconds)
	words := fmt.Sprintf("%.2f%% slower", float64(slower)/100)
	if slower == 0 {
		words = fmt.Sprintf("as fast, %.2f GiB more", float64(p.Estimate.PeakBytes-best.Estimate.PeakBytes)/gib)
	}
	type part struct {
		name string
		loss int
	}
	var parts []part
	theirs := best.Estimate.Seconds()
	for i, s := range p.Estimate.Seconds() {
		parts = append(parts, part{s.Part, hundredths(s.Seconds, theirs[i].Seconds)})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(max(b.loss, -b.loss), max(a.loss, -a.loss)) })
	others := slower
	for _, told := range parts[:numParts] {
		others -= told.loss
	}
	var list []string
	for _, told := range append(parts[:numParts:numParts], part{"others", others}) {
		if told.loss != 0 {
			list = append(list, fmt.Sprintf("%s %+.2f%%", told.name, float64(told.loss)/100))
		}
	}
	if list == nil {
		return words
	}
	return words + ": " + strings.Join(list, ", ")
}

// explainEstimate prints where a plan's memory and time go.
func explainEstimate(w io.Writer, e *estimate.Estimate, capacity int64) {
	t := app.Table(w)
	fmt.Fprintln(t, "GIB OF RANK\tPARAMS\tGRADS\tOPTIMIZER\tACTIVATIONS\tLOGITS\tBUFFERS\tFRAGMENTS\tPEAK\tFREE")
	for first := 0; first < len(e.Ranks); {
		r, last := e.Ranks[first], first
		for last+1 < len(e.Ranks) && alike(r, e.Ranks[last+1]) {
			last++
		}
		name := fmt.Sprint(first)
		if last > first {
			name = fmt.Sprintf("%d-%d", first, last)
		}
		fmt.Fprint(t, name)
		for _, bytes := range []int64{r.Params, r.Grads, r.Optimizer, r.Activations, r.Logits, r.Buffers, r.Fragmentation, r.PeakBytes, capacity - r.PeakBytes} {
			fmt.Fprintf(t, "\t%.2f", float64(bytes)/gib)
		}
		fmt.Fprintln(t)
		first = last + 1
	}
	t.Flush()
	t = app.Table(w)
	for _, p := range e.Seconds() {
		if p.Seconds > 1e-9 {
			fmt.Fprintf(t, "%s\t%.4g s\t%.1f%%\n", strings.ReplaceAll(p.Part, "_", " "), p.Seconds, 100*p.Seconds/e.StepSeconds)
		}
	}
	t.Flush()
	fmt.Fprintf(w, "step %.4g s, %.0f tokens/s a GPU, MFU %.1f%%, bubble %.1f%%\n", e.StepSeconds, e.TokensPerSecondPerGPU, 100*e.MFU, 100*e.Bubble)
}

// alike reports whether two pipeline ranks hold the same.
func alike(a, b estimate.Memory) bool {
	a.PPRank = b.PPRank
	return a == b
}
