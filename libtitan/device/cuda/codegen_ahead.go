package cuda

import (
	"fmt"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

// several reports whether a block has several rows: for what it adds up over them, or finds the largest of.
func (g *generator) several() bool {
	_, cols := g.p.Sums()
	return cols || len(g.p.Largest()) > 0
}

// loaded lists the whole inputs that a stage loads.
func (g *generator) loaded(stage int) (out []int) {
	for _, o := range g.p.In {
		if o.Kind == scalar.Full && g.stage[o.Value] == stage {
			out = append(out, o.Value)
		}
	}
	return out
}

// coming is the room for the row that is asked for while the one before it is done, and the asking for the first.
func (g *generator) coming() {
	bytes, shortest := 0, dtype.Float32.Size()
	for _, o := range g.p.In {
		switch o.Kind {
		case scalar.Full:
			bytes, shortest = bytes+o.DType.Size(), min(shortest, o.DType.Size())
		case scalar.Row:
			g.line("  float n%d = first < rows ? widen(p%d[first]) : 0;", o.Value, o.Value)
		}
	}
	g.line("  constexpr bool ON = comes(%d * V * T * N, %d * N);", bytes, shortest)
	for _, o := range g.p.In {
		if o.Kind == scalar.Full {
			g.line("  __shared__ coming<%s, N> a%d[ON ? V * T : 1];", cname(o.DType), o.Value)
		}
	}
	for s := range g.stages {
		g.ask("  ", "first", s)
	}
}

// ask asks for what a stage loads of a row, if there is one.
func (g *generator) ask(indent, row string, stage int) {
	var body []string
	for _, v := range g.loaded(stage) {
		body = append(body, fmt.Sprintf("ask<ON>(a%d + own<ON, T>(i), p%d + (%s) * dim + j);", v, v, row))
	}
	if body == nil {
		return
	}
	g.line("%sif (%s < rows) {", indent, row)
	g.vectors(indent+"  ", body...)
	g.line("%s}", indent)
	g.line("%ssent();", indent)
}

// later is how many askings follow that for what a stage loads before it loads it: one for each other stage that loads.
func (g *generator) later() int {
	n := -1
	for s := range g.stages {
		if g.loaded(s) != nil {
			n++
		}
	}
	return n
}

// rowBegins has the numbers of a row, and asks for those of the next; of a block's only row it asks for what later stages load.
func (g *generator) rowBegins() {
	for _, o := range g.p.In {
		switch v := o.Value; {
		case o.Kind != scalar.Row:
		case g.several():
			g.line("    float x%d = n%d;", v, v)
			g.line("    if (row + step < rows) n%d = widen(p%d[row + step]);", v, v)
		default:
			g.line("    float x%d = widen(p%d[row]);", v, v)
		}
	}
	for stage := 1; stage < g.stages && !g.several(); stage++ {
		for _, v := range g.loaded(stage) {
			g.vectors("    ", fmt.Sprintf("ahead<N>(p%d + row * dim + j);", v))
		}
	}
}
