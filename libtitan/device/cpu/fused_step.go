package cpu

import (
	"fmt"
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

// vector computes a step that has a value for each column.
func (t *tile) vector(y []float32, s scalar.Step) {
	a := s.Args[0]
	wide := func(i int) bool { return t.p.Steps[i].Kind == scalar.Full || t.p.Steps[i].Kind == scalar.Col }
	switch s.Code {
	case scalar.Add, scalar.Sub, scalar.Mul:
		b := s.Args[1]
		switch {
		case wide(a) && wide(b):
			t.both(y, t.full[a], t.full[b], s.Code)
		case wide(a):
			withRight(t.k, y, t.full[a], t.one[b], s.Code)
		default:
			withLeft(t.k, y, t.one[a], t.full[b], s.Code)
		}
	case scalar.Sigmoid:
		t.k.exp2(y, t.full[a], -math.Log2E, 0)
		for i, x := range y {
			y[i] = 1 / (1 + x)
		}
	case scalar.Round:
		t.k.narrow(t.bits, t.full[a])
		t.k.widen(y, t.bits)
	case scalar.Mean:
		for i, x := range t.full[a] {
			y[i] = x / float32(t.width)
		}
	}
}

func (t *tile) both(y, a, b []float32, c scalar.Code) {
	switch c {
	case scalar.Add:
		t.k.add(y, a, b)
	case scalar.Mul:
		t.k.scaleMul(y, a, b, 1)
	case scalar.Sub:
		for i, x := range a {
			y[i] = x - b[i]
		}
	}
}

// withRight computes with one number on the right of each element, withLeft on the left.
func withRight(k *kernels, y, a []float32, b float32, c scalar.Code) {
	if c == scalar.Mul {
		k.scale(y, a, b)
		return
	}
	if c == scalar.Sub {
		b = -b
	}
	for i, x := range a {
		y[i] = x + b
	}
}

func withLeft(k *kernels, y []float32, a float32, b []float32, c scalar.Code) {
	if c != scalar.Sub {
		withRight(k, y, b, a, c)
		return
	}
	for i, x := range b {
		y[i] = a - x
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
		return sigmoid(a)
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
