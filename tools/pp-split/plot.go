package main

import (
	"bufio"
	"fmt"
	"html"
	"image"
	"image/color"
	"image/png"
	"io"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// plot draws s into path, by the form of its name.
func plot(path string, s *pipeline.Schedule, t *pipeline.Timeline, times pipeline.Times) error {
	return plotStages(path, s, t, func(int) pipeline.Times { return times })
}

func plotStages(path string, s *pipeline.Schedule, t *pipeline.Timeline, times func(stage int) pipeline.Times) error {
	p, err := layOut(s, t, func(a pipeline.Action) int { return times(a.Stage).Of(a.Kind) })
	if err != nil {
		return exit.Input.Wrap(err)
	}
	switch {
	case strings.HasSuffix(path, ".svg"):
		return app.WriteFile(path, p.svg)
	case strings.HasSuffix(path, ".png"):
		return app.WriteFile(path, p.png)
	}
	return exit.Usage.Errorf("--plot %s: its name must end in .svg or .png", path)
}

// svg writes p as a vector graphic; a pointer on a box tells the action.
func (p *picture) svg(out io.Writer) error {
	w := bufio.NewWriter(out)
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">`+"\n", p.width, p.height)
	fmt.Fprintf(w, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", p.width, p.height)
	fmt.Fprintf(w, `<text x="%d" y="22" font-size="14">%s</text>`+"\n", margin, html.EscapeString(p.title))
	for _, b := range p.boxes {
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="%d" height="%d" fill="#%02x%02x%02x"><title>%s</title></rect>`+"\n", b.x, b.y, b.w, b.h, b.fill.R, b.fill.G, b.fill.B, html.EscapeString(b.tip))
		if b.text != "" {
			fmt.Fprintf(w, `<text x="%d" y="%d" text-anchor="middle" pointer-events="none">%s</text>`+"\n", b.x+b.w/2, b.y+b.h/2+4, b.text)
		}
	}
	for _, l := range p.labels {
		fmt.Fprintf(w, `<text x="%d" y="%d">%s</text>`+"\n", l.x, l.y+glyphRow, html.EscapeString(l.text))
	}
	fmt.Fprintln(w, "</svg>")
	return w.Flush()
}

// png writes p as an image.
func (p *picture) png(w io.Writer) error {
	m := image.NewRGBA(image.Rect(0, 0, p.width, p.height))
	fill(m, m.Bounds(), color.RGBA{0xff, 0xff, 0xff, 0xff})
	for _, b := range p.boxes {
		fill(m, image.Rect(b.x, b.y, b.x+b.w, b.y+b.h), b.fill)
		write(m, b.x+(b.w-len(b.text)*glyphWidth)/2+1, b.y+(b.h-glyphRow)/2, b.text)
	}
	for _, l := range append(p.labels, label{margin, 12, p.title}) {
		write(m, l.x, l.y, l.text)
	}
	return png.Encode(w, m)
}

func fill(m *image.RGBA, r image.Rectangle, c color.RGBA) {
	r = r.Intersect(m.Bounds())
	for y := r.Min.Y; y < r.Max.Y; y++ {
		for x := r.Min.X; x < r.Max.X; x++ {
			m.SetRGBA(x, y, c)
		}
	}
}

// write sets text in the font below, two pixels a dot, capitals for small letters.
func write(m *image.RGBA, x, y int, text string) {
	for _, r := range strings.ToUpper(text) {
		for row, bits := range font[r] {
			for column := range 3 {
				if bits>>(2-column)&1 == 1 {
					fill(m, image.Rect(x+2*column, y+2*row, x+2*column+2, y+2*row+2), color.RGBA{0x22, 0x22, 0x22, 0xff})
				}
			}
		}
		x += glyphWidth
	}
}
