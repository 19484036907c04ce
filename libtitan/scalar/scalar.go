// Package scalar is the language of fused kernels: a [Program] says what is done to each element of rows of equal width,
// as a list of steps each of which computes one value from earlier ones. Ops say their meaning in it, the fuse pass joins
// those of a chain, the GPU's code generator and the host's tile loop run the result. Start from [Builder].
package scalar

import (
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/dtype"
)

// Kind is how many of a value there are.
type Kind uint8

// The kinds of values.
const (
	Full Kind = iota // one for each row and column
	Row              // one for each row
	Col              // one for each column
	One              // one in all
)

func (k Kind) String() string { return [...]string{"", "row", "col", "one"}[k] }

// Code is what a step does.
type Code uint8

// The codes. All arithmetic is float32. The host rounds after each step, as the kernels of the separate ops do there; a GPU's
// compiler may contract a product and a sum.
const (
	Input   Code = iota // the next of what the program reads
	Const               // Imm
	Add                 // a + b
	Sub                 // a - b
	Mul                 // a · b
	Sigmoid             // 1 / (1 + e^-a)
	Round               // a, rounded to bfloat16
	Sum                 // of the products of its two or three arguments, over a row: a Row
	Mean                // a / width
	RStd                // 1 / √(a/width + Imm)
)

var codeNames = [...]string{"input", "const", "add", "sub", "mul", "sigmoid", "round", "sum", "mean", "rstd"}

func (c Code) String() string { return codeNames[c] }

// Step computes one value. Args are places of earlier steps.
type Step struct {
	Code Code
	Args []int
	Imm  float64
	Kind Kind
}

// Port is a value that a program reads or writes: step Value, as DType in memory. A Full value that is written as Col is
// summed over all rows; written as One it is the largest magnitude of all, NaN where there is one.
type Port struct {
	Value int
	DType dtype.DType
	Kind  Kind
}

// Program is what is done to each element.
type Program struct {
	Steps   []Step
	In, Out []Port
}

// Sums reports whether p sums over rows, or over columns.
func (p *Program) Sums() (rows, cols bool) {
	for _, s := range p.Steps {
		rows = rows || s.Code == Sum
	}
	for _, o := range p.Out {
		cols = cols || o.Kind == Col
	}
	return rows, cols
}

// Largest lists the results that are largest magnitudes.
func (p *Program) Largest() (out []int) {
	for i, o := range p.Out {
		if o.Kind == One && p.Steps[o.Value].Kind == Full {
			out = append(out, i)
		}
	}
	return out
}

// Flat reports whether p treats every element alike, whatever row and column it stands in.
func (p *Program) Flat() bool {
	full := func(o Port) bool { return o.Kind == Full || o.Kind == One }
	rows, _ := p.Sums()
	return !rows && !slices.ContainsFunc(p.In, func(o Port) bool { return !full(o) }) && !slices.ContainsFunc(p.Out, func(o Port) bool { return !full(o) })
}

// Hash names a program: equal programs have equal names.
func (p *Program) Hash() string {
	h := fnv.New64a()
	h.Write([]byte(p.String()))
	return fmt.Sprintf("%016x", h.Sum64())
}

// String is p in one line: "[%0 bfloat16, %1 bfloat16 -> %2 = add %0 %1 -> %2 bfloat16]".
func (p *Program) String() string {
	var in, steps, out []string
	port := func(o Port) string {
		return strings.TrimSuffix(fmt.Sprintf("%%%d %v %v", o.Value, o.DType, o.Kind), " ")
	}
	for _, o := range p.In {
		in = append(in, port(o))
	}
	for i, s := range p.Steps {
		if s.Code != Input {
			steps = append(steps, fmt.Sprintf("%%%d = %s", i, s))
		}
	}
	for _, o := range p.Out {
		out = append(out, port(o))
	}
	return "[" + strings.Join(in, ", ") + " -> " + strings.Join(steps, ", ") + " -> " + strings.Join(out, ", ") + "]"
}

func (s Step) String() string {
	t := s.Code.String()
	for _, a := range s.Args {
		t += " %" + strconv.Itoa(a)
	}
	if s.Imm != 0 {
		t += " " + strconv.FormatFloat(s.Imm, 'g', -1, 64)
	}
	return t
}
