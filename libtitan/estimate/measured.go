package estimate

import (
	"cmp"
	"math"
	"slices"

	"titan/libtitan/exit"
)

// Measured is what titan-run bench found on a machine. What it has takes the place of shares of the peaks, which are
// those of other machines.
type Measured struct {
	Products    []ProductRate    `json:"products"`
	Attention   []AttentionRate  `json:"attention"`
	Kernels     []KernelRate     `json:"kernels"`
	Collectives []CollectiveTime `json:"collectives,omitempty"`
	// Shared: all ranks of a node compute on one device, as ranks of the CPU do, each kernel on all of it: a step takes
	// the sum of what its ranks do.
	Shared bool `json:"shared"`
}

// ProductRate is how fast the forward and the two backward products of tokens x in times in x out are, together.
type ProductRate struct {
	Type   string  `json:"type"` // float32, bfloat16 or float8
	Tokens int     `json:"tokens"`
	In     int     `json:"in"`
	Out    int     `json:"out"`
	TFLOPS float64 `json:"tflops"`
}

// AttentionRate is how fast causal attention is, of flops that the mask leaves.
type AttentionRate struct {
	Type           string  `json:"type"`
	SeqLen         int     `json:"seq_len"`
	HeadDim        int     `json:"head_dim"`
	ForwardTFLOPS  float64 `json:"forward_tflops"`
	BackwardTFLOPS float64 `json:"backward_tflops"`
}

// KernelRate is the bytes that kernels which are not products move a second, each value read or written once.
type KernelRate struct {
	Name string  `json:"name"` // copy; update: AdamW; layer: norms, rotation, gated unit, sums, forward and backward; loss: its, forward and backward
	Type string  `json:"type"`
	GBps float64 `json:"gbps"`
}

// CollectiveTime is how long a collective of bytes in all takes over ranks of one node, all at once.
type CollectiveTime struct {
	Name    string  `json:"name"` // all_gather, reduce_scatter, all_reduce or send
	Ranks   int     `json:"ranks"`
	Bytes   int     `json:"bytes"`
	Seconds float64 `json:"seconds"`
}

// Shared reports whether the ranks of a node share one device.
func (m *Machine) Shared() bool { return m.Measured != nil && m.Measured.Shared }

// Share is the memory in bytes of each of world ranks: a GPU's, or an equal part of what those of a node share.
func (m *Machine) Share(world int) int64 {
	if !m.Shared() {
		return m.MemoryBytes
	}
	return m.MemoryBytes / int64(max(1, min(world, m.GPUsPerNode)))
}

// maxRows bounds each list of a Measured.
const maxRows = 4096

// check refuses figures that no estimate can be made of.
func (d *Measured) check() error {
	if d == nil {
		return nil
	}
	if n := max(len(d.Products), len(d.Attention), len(d.Kernels), len(d.Collectives)); n > maxRows {
		return exit.Input.Errorf("hardware: measured: a list of %d rows: at most %d", n, maxRows)
	}
	if len(d.Products) == 0 || len(d.Attention) == 0 || len(d.Kernels) == 0 {
		return exit.Input.Errorf("hardware: measured: products, attention and kernels must have rows: leave measured out where nothing is")
	}
	var all []float64
	for _, r := range d.Products {
		all = append(all, float64(r.Tokens), float64(r.In), float64(r.Out), r.TFLOPS)
	}
	for _, r := range d.Attention {
		all = append(all, float64(r.SeqLen), float64(r.HeadDim), r.ForwardTFLOPS, r.BackwardTFLOPS)
	}
	for _, r := range d.Kernels {
		all = append(all, r.GBps)
	}
	for _, r := range d.Collectives {
		all = append(all, float64(r.Bytes), r.Seconds, float64(r.Ranks-1))
	}
	for _, x := range all {
		if !(x >= 1e-9) || x > maxFigure {
			return exit.Input.Errorf("hardware: measured: %v is out of range: it must be 1e-09 to %v", x, maxFigure)
		}
	}
	return nil
}

// point is a measured rate at a size.
type point struct{ at, rate float64 }

// curve reads a rate off points: between two, along the line through them on logarithmic axes; beyond the ends, theirs.
// Of points at one size it takes the mean.
func curve(points []point, at float64) float64 {
	slices.SortFunc(points, func(p, q point) int { return cmp.Or(cmp.Compare(p.at, q.at), cmp.Compare(p.rate, q.rate)) })
	n := 0
	for first := 0; first < len(points); n++ {
		sum, last := 0.0, first
		for ; last < len(points) && points[last].at == points[first].at; last++ {
			sum += points[last].rate
		}
		points[n] = point{points[first].at, sum / float64(last-first)}
		first = last
	}
	points = points[:n]
	if at <= points[0].at {
		return points[0].rate
	}
	for i, p := range points[1:] {
		if q := points[i]; at <= p.at && q.at < p.at {
			share := math.Log(at/q.at) / math.Log(p.at/q.at)
			return q.rate * math.Pow(p.rate/q.rate, share)
		}
	}
	return points[len(points)-1].rate
}

// product is the measured seconds of one product of t tokens, if products of kind were measured.
func (d *Measured) product(kind string, p product, t float64) (s float64, ok bool) {
	if d == nil {
		return 0, false
	}
	var points []point
	for _, r := range d.Products {
		if r.Type == kind {
			points = append(points, point{2 * float64(r.Tokens) * float64(r.In) * float64(r.Out), r.TFLOPS * 1e12})
		}
	}
	if points == nil {
		return 0, false
	}
	flops := 2 * t * p.in * p.out
	return flops / curve(points, flops), true
}

// attention is the measured rates at a sequence of s positions: those of the nearest head.
func (d *Measured) attention(kind string, s, headDim float64) (forward, backward float64, ok bool) {
	if d == nil {
		return 0, 0, false
	}
	best := math.Inf(1)
	for _, r := range d.Attention {
		if off := math.Abs(math.Log(float64(r.HeadDim) / headDim)); r.Type == kind {
			best = min(best, off)
		}
	}
	var f, b []point
	for _, r := range d.Attention {
		if r.Type == kind && math.Abs(math.Log(float64(r.HeadDim)/headDim)) == best {
			f = append(f, point{float64(r.SeqLen), r.ForwardTFLOPS * 1e12})
			b = append(b, point{float64(r.SeqLen), r.BackwardTFLOPS * 1e12})
		}
	}
	if f == nil {
		return 0, 0, false
	}
	return curve(f, s), curve(b, s), true
}

// kernel is the measured bytes a second of kernels called name.
func (d *Measured) kernel(name, kind string) (rate float64, ok bool) {
	if d == nil {
		return 0, false
	}
	for _, r := range d.Kernels {
		if r.Name == name && r.Type == kind {
			return r.GBps * 1e9, true
		}
	}
	return 0, false
}

// collective is the measured seconds of a collective over size ranks of one node, scaled to them from the number of ranks
// that it was measured on by the bytes that each passes on. Of ranks that share a device it is one rank's share.
func (d *Measured) collective(name string, size int, bytes float64) (s float64, ok bool) {
	if d == nil {
		return 0, false
	}
	ranks := 0 // the measured number that is nearest
	for _, r := range d.Collectives {
		if r.Name == name && (ranks == 0 || math.Abs(math.Log(float64(r.Ranks)/float64(size))) < math.Abs(math.Log(float64(ranks)/float64(size)))) {
			ranks = r.Ranks
		}
	}
	if ranks == 0 {
		return 0, false
	}
	passed := func(n int) float64 { return float64(n-1) / float64(n) }
	bytes *= passed(size) / passed(ranks)
	var points []point
	for _, r := range d.Collectives {
		if r.Name == name && r.Ranks == ranks {
			points = append(points, point{float64(r.Bytes), r.Seconds})
		}
	}
	s = curve(points, bytes)
	if last := points[len(points)-1]; bytes > last.at {
		s = last.rate * bytes / last.at
	}
	if d.Shared {
		s /= float64(ranks)
	}
	return s, true
}
