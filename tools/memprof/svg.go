package main

import (
	"encoding/xml"
	"fmt"
	"image/color"
	"io"
	"strconv"
	"strings"

	"titan/libtitan/snapshot"
	"titan/tools/internal/app"
)

func grouped(n int) string { return app.Grouped(int64(n)) }

// svg collects the elements of a drawing.
type svg struct{ strings.Builder }

func writeSVG(w io.Writer, path string, r *snapshot.Report) error {
	s := &svg{}
	drawChart(s, path, r)
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="system-ui, sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="#fff"/>
%s</svg>
`, chartWidth, chartHeight, s.String())
	return err
}

func hex(c color.RGBA) string { return fmt.Sprintf("#%02x%02x%02x", c.R, c.G, c.B) }

func path(x, y []float64) string {
	var b strings.Builder
	for i := range x {
		b.WriteString(strconv.FormatFloat(x[i], 'f', 1, 64) + "," + strconv.FormatFloat(y[i], 'f', 1, 64) + " ")
	}
	return strings.TrimSuffix(b.String(), " ")
}

func (s *svg) area(x, low, high []float64, fill color.RGBA) {
	fmt.Fprintf(s, "<polygon fill=\"%s\" points=\"%s", hex(fill), path(x, high))
	for i := len(x) - 1; i >= 0; i-- {
		fmt.Fprintf(s, " %.1f,%.1f", x[i], low[i])
	}
	s.WriteString("\"/>\n")
}

func (s *svg) line(x, y []float64, stroke color.RGBA, dash int) {
	fmt.Fprintf(s, "<polyline fill=\"none\" stroke=\"%s\" stroke-dasharray=\"%d\" points=\"%s\"/>\n", hex(stroke), dash, path(x, y))
}

func (s *svg) text(x, y float64, text string, ink color.RGBA, a anchor) {
	fmt.Fprintf(s, "<text x=\"%.1f\" y=\"%.1f\" fill=\"%s\" text-anchor=\"%s\">", x, y, hex(ink), [...]string{"start", "end"}[a])
	xml.EscapeText(s, []byte(text)) // a strings.Builder takes all
	s.WriteString("</text>\n")
}
