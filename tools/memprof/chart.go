package main

import (
	"image/color"
	"path/filepath"

	"titan/libtitan/alloc"
	"titan/libtitan/snapshot"
)

// The size of a drawn timeline, in pixels, and where its axes lie.
const (
	chartWidth, chartHeight = 1200, 420
	chartLeft, chartRight   = 90, 1185
	chartTop, chartBottom   = 60, 385
)

// canvas is what a timeline is drawn on.
type canvas interface {
	area(x, low, high []float64, fill color.RGBA) // between two lines over the same x
	line(x, y []float64, stroke color.RGBA, dash int)
	text(x, y float64, s string, ink color.RGBA, anchor anchor) // y is the base line
}

// anchor says which end of a text is at its place.
type anchor int

const (
	atStart anchor = iota
	atEnd
)

var (
	inkColour       = color.RGBA{0x1c, 0x24, 0x30, 0xff}
	faintColour     = color.RGBA{0x66, 0x70, 0x80, 0xff}
	ruleColour      = color.RGBA{0xd8, 0xdd, 0xe4, 0xff}
	allocatedColour = color.RGBA{0x3b, 0x6f, 0xb6, 0xff}
	pendingColour   = color.RGBA{0xd9, 0x48, 0x0f, 0xff}
	cachedColour    = color.RGBA{0xc9, 0xd1, 0xda, 0xff}
)

// drawChart draws r's timeline: what is allocated, pending on top of it, and cached up to what is reserved.
func drawChart(c canvas, path string, r *snapshot.Report) {
	points := r.Timeline.Points
	top := float64(max(1, r.Peak.Reserved, r.Peak.Active))
	x := make([]float64, len(points))
	for i := range x {
		x[i] = chartLeft + float64(i)/float64(max(1, len(points)-1))*(chartRight-chartLeft)
	}
	if len(points) == 1 { // a line of one point is none
		x, points = []float64{chartLeft, chartRight}, append(points[:1:1], points[0])
	}
	height := func(n int64) float64 { return chartBottom - float64(n)/top*(chartBottom-chartTop) }
	series := func(of func(p *snapshot.Point) int64) []float64 {
		y := make([]float64, len(points))
		for i := range y {
			y[i] = height(of(&points[i]))
		}
		return y
	}
	at := func(of func(c alloc.Counts) int64) []float64 {
		return series(func(p *snapshot.Point) int64 { return of(p.At) })
	}
	zero := at(func(alloc.Counts) int64 { return 0 })
	allocated := at(func(c alloc.Counts) int64 { return c.Allocated })
	active := at(func(c alloc.Counts) int64 { return c.Active })
	c.area(x, active, at(func(c alloc.Counts) int64 { return max(c.Active, c.Reserved) }), cachedColour)
	c.area(x, zero, allocated, allocatedColour)
	c.area(x, allocated, active, pendingColour)
	drawAxes(c, int64(top), height, r)
	c.line(x, series(func(p *snapshot.Point) int64 { return p.Max.Reserved }), inkColour, 6)
	drawLegend(c, path, r)
}

func drawAxes(c canvas, top int64, height func(int64) float64, r *snapshot.Report) {
	step := int64(1)
	for top/step > 6 {
		step *= 2
	}
	for n := int64(0); n <= top; n += step {
		c.line([]float64{chartLeft, chartRight}, []float64{height(n), height(n)}, ruleColour, 0)
		c.text(chartLeft-8, height(n)+4, human(n), faintColour, atEnd)
	}
	if r.Counterfactual < r.Peak.Active {
		y := height(r.Counterfactual)
		c.line([]float64{chartLeft, chartRight}, []float64{y, y}, inkColour, 3)
		c.text(chartLeft+4, y-6, "peak had every free completed at once: "+human(r.Counterfactual), inkColour, atStart)
	}
	c.text(chartLeft, chartBottom+20, "event 0", faintColour, atStart)
	points := r.Timeline.Points
	if n := points[len(points)-1].Event; n > 0 {
		c.text(chartRight, chartBottom+20, "event "+grouped(n), faintColour, atEnd)
	}
}

func drawLegend(c canvas, path string, r *snapshot.Report) {
	c.text(chartLeft, 22, filepath.Base(path)+", device "+grouped(r.Device)+", history "+string(r.History), inkColour, atStart)
	x := float64(chartLeft)
	for _, k := range []struct {
		name string
		fill color.RGBA
	}{
		{"allocated, peak " + human(r.Peak.Allocated), allocatedColour},
		{"pending, " + human(r.AtPeakActive.Pending) + " at peak active", pendingColour},
		{"cached", cachedColour},
		{"reserved (dashed), peak " + human(r.Peak.Reserved), inkColour},
	} {
		c.area([]float64{x, x + 12}, []float64{46, 46}, []float64{36, 36}, k.fill)
		c.text(x+18, 45, k.name, inkColour, atStart)
		x += 46 + 7*float64(len(k.name))
	}
}
