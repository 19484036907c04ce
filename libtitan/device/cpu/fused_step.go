package cpu

import (
	"fmt"
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

// step computes step i, which is no input.
func (t *tile) step(i int, s scalar.Step) {
	if s.Kind == scalar.Full || s.Kind == scalar.Col {
		t.vector(t.full[i], s)
		return
	}
	t.one[i] = t.scalar(s)
	if s.Kind == scalar.One {
		fill(t.full[i], t.one[i])
	}
}

func fill(y []float32, x float32) {
	for i := range y {
		y[i] = x
	}
}

// vector computes a step that has a value for each column.
func (t *tile) vector(y []float32, s scalar.Step) {
	a := s.Args[0]
	switch s.Code {
	case scalar.Add:
		t.k.add(y, t.wide(a), t.wide(s.Args[1]))
	case scalar.Sub:
		t.k.sub(y, t.wide(a), t.wide(s.Args[1]))
	case scalar.Mul:
		t.product(y, a, s.Args[1])
	case scalar.Sigmoid:
		t.k.sigmoid(y, t.full[a])
	case scalar.Round:
		t.k.narrow(t.bits, t.full[a])
		t.k.widen(y, t.bits)
	case scalar.Mean:
		for i, x := range t.full[a] {
			y[i] = x / float32(t.width)
		}
	}
}

// wide is step i's value for each column.
func (t *tile) wide(i int) []float32 {
	if t.p.Steps[i].Kind == scalar.Row {
		fill(t.full[i], t.one[i])
	}
	return t.full[i]
}

func (t *tile) product(y []float32, a, b int) {
	number := func(i int) bool { return t.p.Steps[i].Kind == scalar.Row || t.p.Steps[i].Kind == scalar.One }
	switch {
	case number(a):
		t.k.scale(y, t.full[b], t.one[a])
	case number(b):
		t.k.scale(y, t.full[a], t.one[b])
	default:
		t.k.scaleMul(y, t.full[a], t.full[b], 1)
	}
}

// scalar computes a step that has one value in a row.
func (t *tile) scalar(s scalar.Step) float32 {
	var a, b float32
	if len(s.Args) > 0 {
		a = t.one[s.Args[0]]
	}
	if len(s.Args) > 1 {
		b = t.one[s.Args[1]]
	}
	switch s.Code {
	case scalar.Const:
		return float32(s.Imm)
	case scalar.Add:
		return a + b
	case scalar.Sub:
		return a - b
	case scalar.Mul:
		return a * b
	case scalar.Sigmoid:
		y := []float32{a}
		t.k.sigmoid(y, y)
		return y[0]
	case scalar.Round:
		t.k.narrow(t.bits[:1], []float32{a})
		return math.Float32frombits(uint32(t.bits[0]) << 16)
	case scalar.Mean:
		return a / float32(t.width)
	case scalar.RStd:
		return float32(1 / math.Sqrt(float64(a)/float64(t.width)+float64(float32(s.Imm))))
	}
	return t.sum(s.Args)
}

func (t *tile) sum(args []int) float32 {
	x, y := t.full[args[0]], t.full[args[1]]
	if len(args) == 2 {
		return t.k.dot(x, y)
	}
	return t.k.dot3(x, y, t.full[args[2]])
}

// columnSums adds up results over rows: a task of rows has a part, the parts are added in their order.
type columnSums struct {
	width int
	cols  []int         // the results that are such sums
	parts [][][]float32 // by task, by result; nil where it is none
}

func (e *Engine) newColumnSums(p *scalar.Program, rows, width int) *columnSums {
	s := &columnSums{width: width}
	for i, o := range p.Out {
		if o.Kind == scalar.Col {
			s.cols = append(s.cols, i)
		}
	}
	tasks := 1
	if s.cols != nil {
		tasks = max(1, (rows+rowGrain-1)/rowGrain)
	}
	for range tasks {
		part := make([][]float32, len(p.Out))
		for _, i := range s.cols {
			part[i] = make([]float32, width)
		}
		s.parts = append(s.parts, part)
	}
	return s
}

func (s *columnSums) of(task int) [][]float32 { return s.parts[min(task, len(s.parts)-1)] }

func (s *columnSums) finish(e *Engine, out []Values, add []bool) {
	for _, i := range s.cols {
		total := s.parts[0][i]
		for _, part := range s.parts[1:] {
			e.k.add(total, total, part[i])
		}
		y := out[i].F32[:s.width]
		if !add[i] {
			clear(y)
		}
		e.k.add(y, y, total)
	}
}

// Fusible reports whether the host has a form of every step of p: numbers of rows, and the largest, are written as float32, and sums are of
// what has columns.
func Fusible(p *scalar.Program) error {
	for _, o := range p.Out {
		if (o.Kind == scalar.One || o.Kind == scalar.Row) && o.DType != dtype.Float32 {
			return fmt.Errorf("a result %v of a %v", o.DType, o.Kind)
		}
	}
	for _, s := range p.Steps {
		for _, a := range s.Args {
			if k := p.Steps[a].Kind; s.Code == scalar.Sum && (k == scalar.Row || k == scalar.One) {
				return fmt.Errorf("a row's sum of %v", p.Steps[a])
			}
		}
	}
	return nil
}
