package scalar

import (
	"slices"

	"titan/libtitan/dtype"
)

// Value is a value of a program that is being built.
type Value int

// Builder makes a program step by step. A step that is there already is not made again.
type Builder struct{ p Program }

func (b *Builder) step(c Code, imm float64, kind Kind, args ...Value) Value {
	s := Step{Code: c, Imm: imm, Kind: kind}
	for _, a := range args {
		s.Args = append(s.Args, int(a))
	}
	for i, have := range b.p.Steps {
		if c != Input && have.Code == c && have.Imm == imm && slices.Equal(have.Args, s.Args) {
			return Value(i)
		}
	}
	b.p.Steps = append(b.p.Steps, s)
	return Value(len(b.p.Steps) - 1)
}

// Kind is the kind of v.
func (b *Builder) Kind(v Value) Kind { return b.p.Steps[v].Kind }

// join is the kind of what is made of x and y.
func (b *Builder) join(x, y Value) Kind {
	kx, ky := b.Kind(x), b.Kind(y)
	switch {
	case kx == ky || ky == One:
		return kx
	case kx == One:
		return ky
	}
	return Full
}

// Input is the next value that the program reads.
func (b *Builder) Input(t dtype.DType, k Kind) Value {
	v := b.step(Input, 0, k)
	b.p.In = append(b.p.In, Port{int(v), t, k})
	return v
}

// Const is a number.
func (b *Builder) Const(x float64) Value { return b.step(Const, x, One) }

// Add is x + y.
func (b *Builder) Add(x, y Value) Value { return b.step(Add, 0, b.join(x, y), x, y) }

// Sub is x - y.
func (b *Builder) Sub(x, y Value) Value { return b.step(Sub, 0, b.join(x, y), x, y) }

// Mul is the product of its arguments, from left to right.
func (b *Builder) Mul(x Value, ys ...Value) Value {
	for _, y := range ys {
		x = b.step(Mul, 0, b.join(x, y), x, y)
	}
	return x
}

// Sigmoid is the logistic function of x.
func (b *Builder) Sigmoid(x Value) Value { return b.step(Sigmoid, 0, b.Kind(x), x) }

// Round is x as t holds it.
func (b *Builder) Round(x Value, t dtype.DType) Value {
	if t != dtype.BFloat16 || b.exact(x) {
		return x
	}
	return b.step(Round, 0, b.Kind(x), x)
}

// exact reports whether x is a value of bfloat16 already.
func (b *Builder) exact(x Value) bool {
	if b.p.Steps[x].Code == Round {
		return true
	}
	return slices.ContainsFunc(b.p.In, func(o Port) bool { return o.Value == int(x) && o.DType == dtype.BFloat16 })
}

// Sum adds the products of two or three values over each row; the first is Full.
func (b *Builder) Sum(x ...Value) Value { return b.step(Sum, 0, Row, x...) }

// Mean is a row's sum divided by the width.
func (b *Builder) Mean(x Value) Value { return b.step(Mean, 0, b.Kind(x), x) }

// RStd is 1/√(x/width + eps).
func (b *Builder) RStd(x Value, eps float64) Value { return b.step(RStd, eps, b.Kind(x), x) }

// Output writes x as t; a Full x as Col is summed over all rows, as One it is the largest magnitude.
func (b *Builder) Output(x Value, t dtype.DType, k Kind) {
	b.p.Out = append(b.p.Out, Port{int(x), t, k})
}

// Program is what was built, without the steps that no output needs.
func (b *Builder) Program() *Program {
	used := make([]bool, len(b.p.Steps))
	for _, o := range b.p.Out {
		used[o.Value] = true
	}
	for i := len(b.p.Steps) - 1; i >= 0; i-- {
		for _, a := range b.p.Steps[i].Args {
			used[a] = used[a] || used[i]
		}
		used[i] = used[i] || b.p.Steps[i].Code == Input
	}
	out := &Program{}
	to := make([]int, len(used))
	for i, s := range b.p.Steps {
		if !used[i] {
			continue
		}
		to[i] = len(out.Steps)
		s.Args = slices.Clone(s.Args)
		for j, a := range s.Args {
			s.Args[j] = to[a]
		}
		out.Steps = append(out.Steps, s)
	}
	moved := func(ports []Port) []Port {
		ports = slices.Clone(ports)
		for i := range ports {
			ports[i].Value = to[ports[i].Value]
		}
		return ports
	}
	out.In, out.Out = moved(b.p.In), moved(b.p.Out)
	return out
}
