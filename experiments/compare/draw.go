package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// Sizes in pixels: two panels side by side.
const (
	panelWidth  = 460
	panelHeight = 300
	left        = 60 // of a panel, for its axis
	top         = 50
	below       = 60
)

var colours = []string{"#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#17becf", "#7f7f7f"}

func colour(i int) string { return colours[i%len(colours)] }

// draw is an SVG: the losses of all runs by step, which lie on each other where the meshes compute the same; and the
// time of a step, predicted and measured.
func draw(runs []run) []byte {
	var b bytes.Buffer
	width, height := 2*(left+panelWidth)+left, top+panelHeight+below
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	drawLosses(&b, runs, left)
	drawTimes(&b, runs, 2*left+panelWidth)
	fmt.Fprintln(&b, "</svg>")
	return b.Bytes()
}

// axis maps values from low to high onto a panel's height, and draws five lines with their values.
type axis struct{ low, high float64 }

func (a axis) y(v float64) float64 {
	return top + panelHeight*(1-(v-a.low)/max(a.high-a.low, 1e-12))
}

func (a axis) draw(b *bytes.Buffer, x int, title, format string) {
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14">%s</text>`+"\n", x, top-20, html.EscapeString(title))
	for i := range 5 {
		v := a.low + (a.high-a.low)*float64(i)/4
		fmt.Fprintf(b, `<line x1="%d" x2="%d" y1="%.1f" y2="%.1f" stroke="#ddd"/>`, x, x+panelWidth, a.y(v), a.y(v))
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">`+format+"</text>\n", x-6, a.y(v)+4, v)
	}
}

func drawLosses(b *bytes.Buffer, runs []run, x int) {
	a, most := axis{math.Inf(1), math.Inf(-1)}, 2
	for _, r := range runs {
		a.low, a.high = min(a.low, slices.Min(r.measured.losses)), max(a.high, slices.Max(r.measured.losses))
		most = max(most, len(r.measured.losses))
	}
	a.draw(b, x, "loss by step: meshes of one job lie on each other", "%.2f")
	for i, r := range runs {
		var points []string
		for step, loss := range r.measured.losses {
			points = append(points, fmt.Sprintf("%.1f,%.1f", float64(x)+panelWidth*float64(step)/float64(most-1), a.y(loss)))
		}
		// the first is drawn widest, so that it shows beside those on top of it
		fmt.Fprintf(b, `<polyline fill="none" stroke="%s" stroke-width="%d" stroke-opacity="0.7" points="%s"/>`+"\n", colour(i), 2+3*(len(runs)-1-i), strings.Join(points, " "))
		y := top + panelHeight + 20 + 18*(i/4)
		fmt.Fprintf(b, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/><text x="%d" y="%d">%s</text>`+"\n", x+110*(i%4), y, colour(i), x+110*(i%4)+16, y+11, html.EscapeString(r.name))
	}
}

func drawTimes(b *bytes.Buffer, runs []run, x int) {
	a := axis{}
	for _, r := range runs {
		a.high = max(a.high, 1e3*r.predicted.seconds, 1e3*r.measured.fastest)
	}
	a.draw(b, x, "milliseconds a step: predicted (pale), the fastest measured", "%.0f")
	slot := float64(panelWidth) / float64(len(runs))
	for i, r := range runs {
		for j, s := range []float64{r.predicted.seconds, r.measured.fastest} {
			at, wide := float64(x)+slot*(float64(i)+0.14+0.37*float64(j)), slot*0.33
			fmt.Fprintf(b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" fill-opacity="%.1f"/>`, at, a.y(1e3*s), wide, a.y(0)-a.y(1e3*s), colour(i), 0.4+0.6*float64(j))
			fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="middle" font-size="11">%.0f</text>`+"\n", at+wide/2, a.y(1e3*s)-3, 1e3*s)
		}
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", float64(x)+slot*(float64(i)+0.5), top+panelHeight+20, html.EscapeString(r.name))
	}
}
