package main

import (
	"fmt"
	"image/color"

	"titan/libtitan/pipeline"
)

// picture is a schedule's timeline, laid out in pixels: a row for each rank, a box for each action as wide as it lasts.
type picture struct {
	width, height int
	title         string
	boxes         []box
	labels        []label
}

type box struct {
	x, y, w, h int
	fill       color.RGBA
	text       string // inside, where it fits
	tip        string // the action, for a pointer
}

type label struct {
	x, y int // of the first letter's top left
	text string
}

// Sizes in pixels. A letter of the PNG's font is glyphWidth wide with its gap.
const (
	rowHeight  = 24
	rowGap     = 4
	margin     = 10
	leftColumn = 70
	topRow     = 34
	bottomRow  = 34
	fullWidth  = 1600 // of the time axis, at most a pixel's rounding more
	glyphWidth = 8
	glyphRow   = 10
)

// colours are those of the kinds, on the first of a rank's stages and on the later ones.
var colours = map[pipeline.Kind][2]color.RGBA{
	pipeline.Forward:    {{0x9e, 0xc9, 0xf0, 0xff}, {0x5b, 0x9b, 0xd5, 0xff}},
	pipeline.Backward:   {{0xa8, 0xdd, 0xa0, 0xff}, {0x6a, 0xb8, 0x5f, 0xff}},
	pipeline.InputGrad:  {{0xf7, 0xd0, 0x8a, 0xff}, {0xe8, 0xa8, 0x38, 0xff}},
	pipeline.WeightGrad: {{0xd9, 0xb8, 0xe8, 0xff}, {0xb0, 0x7c, 0xc6, 0xff}},
}

// maxBoxes bounds what is drawn; beyond, nobody could tell one from the other.
const maxBoxes = 20000

// layOut lays a timeline out.
func layOut(s *pipeline.Schedule, t *pipeline.Timeline, lasts func(pipeline.Action) int) (*picture, error) {
	n := 0
	for _, actions := range s.Ranks {
		n += len(actions)
	}
	if n > maxBoxes {
		return nil, fmt.Errorf("plot: %d actions: at most %d can be told apart: draw fewer microbatches", n, maxBoxes)
	}
	p := &picture{
		width: leftColumn + fullWidth + 2*margin, height: topRow + len(s.Ranks)*(rowHeight+rowGap) + bottomRow,
		title: fmt.Sprintf("%s: %s, %.1f%% idle", s.Name, extent(s, t), 100*t.Bubble),
	}
	at := func(tick int) int { return leftColumn + margin + tick*fullWidth/max(1, t.Makespan) }
	for rank, actions := range s.Ranks {
		y := topRow + rank*(rowHeight+rowGap)
		p.labels = append(p.labels, label{margin, y + (rowHeight-glyphRow)/2, fmt.Sprintf("rank %d", rank)})
		p.boxes = append(p.boxes, box{x: at(0), y: y, w: fullWidth, h: rowHeight, fill: color.RGBA{0xf2, 0xf2, 0xf2, 0xff}, tip: fmt.Sprintf("rank %d idles %.1f%%", rank, 100*t.Idle[rank])})
		for i, a := range actions {
			start, end := t.Start[rank][i], t.Start[rank][i]+lasts(a)
			b := box{x: at(start), y: y, w: max(1, at(end)-at(start)-1), h: rowHeight, fill: colours[a.Kind][min(1, a.Stage/len(s.Ranks))],
				tip: fmt.Sprintf("%v, ticks %d to %d", a, start, end)}
			if text := fmt.Sprint(a.Microbatch); len(text)*glyphWidth <= b.w {
				b.text = text
			}
			p.boxes = append(p.boxes, b)
		}
	}
	p.legend(s)
	return p, nil
}

// legend explains the colours that are used.
func (p *picture) legend(s *pipeline.Schedule) {
	used := map[pipeline.Kind]bool{}
	for _, actions := range s.Ranks {
		for _, a := range actions {
			used[a.Kind] = true
		}
	}
	x, y := leftColumn+margin, p.height-bottomRow+8
	for _, k := range []struct {
		kind pipeline.Kind
		name string
	}{{pipeline.Forward, "F forward"}, {pipeline.Backward, "B backward"}, {pipeline.InputGrad, "I input gradient"}, {pipeline.WeightGrad, "W weight gradient"}} {
		if !used[k.kind] {
			continue
		}
		p.boxes = append(p.boxes, box{x: x, y: y, w: 12, h: 12, fill: colours[k.kind][0], tip: k.name}, box{x: x + 12, y: y, w: 12, h: 12, fill: colours[k.kind][1], tip: k.name + " of a later stage"})
		p.labels = append(p.labels, label{x + 30, y + 1, k.name})
		x += 30 + (len(k.name)+3)*glyphWidth
	}
	p.labels = append(p.labels, label{x, y + 1, "numbers are microbatches"})
}
