package cuda

import (
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

//go:embed fused.cuh
var fusedHeader string

// generator writes the kernel of a program. A program with sums over rows runs in stages: between two, the block adds
// up what each thread summed. A value is computed in the first stage that needs it, and kept in registers for later ones.
type generator struct {
	p      *scalar.Program
	name   string
	fast   bool  // something is rounded to bf16: the hardware's approximations will do
	stage  []int // by step: where it is computed; of an input, where it is loaded
	last   []int // by step: the last stage that reads it
	stages int
	out    strings.Builder
}

// FusedSource is the CUDA C of p's kernel, whose name is FusedName. Parameters are the inputs, the results (of a sum over
// rows: the blocks' parts), and n elements, or rows and dim.
func FusedSource(p *scalar.Program) string {
	g := &generator{p: p, name: FusedName(p)}
	for _, o := range p.Out {
		g.fast = g.fast || o.DType == dtype.BFloat16
	}
	g.schedule()
	g.out.WriteString(fusedHeader)
	g.line("// %s", p)
	if p.Flat() {
		g.flat()
	} else {
		g.rows()
	}
	return g.out.String()
}

// FusedName is the name of p's kernel.
func FusedName(p *scalar.Program) string { return "fused_" + p.Hash() }

func (g *generator) line(format string, args ...any) { fmt.Fprintf(&g.out, format+"\n", args...) }

// wide reports whether step i has a value for each column.
func (g *generator) wide(i int) bool {
	k := g.p.Steps[i].Kind
	return k == scalar.Full || k == scalar.Col
}

// schedule gives each step its stage. A number of a row stands before the stage that it is first there for.
func (g *generator) schedule() {
	n := len(g.p.Steps)
	ready := make([]int, n) // the first stage that can read it
	for i, s := range g.p.Steps {
		for _, a := range s.Args {
			ready[i] = max(ready[i], ready[a])
		}
		if s.Code == scalar.Sum {
			ready[i]++
		}
		g.stages = max(g.stages, ready[i]+1)
	}
	g.stage, g.last = make([]int, n), make([]int, n)
	for i := range g.stage {
		g.stage[i], g.last[i] = g.stages-1, ready[i]
	}
	for _, o := range g.p.Out {
		g.last[o.Value] = g.stages - 1
	}
	for i := n - 1; i >= 0; i-- {
		s := g.p.Steps[i]
		switch {
		case s.Code == scalar.Sum:
			g.stage[i] = ready[i] - 1
		case !g.wide(i):
			g.stage[i] = ready[i]
		}
		for _, a := range s.Args {
			if g.wide(a) {
				g.stage[a] = min(g.stage[a], g.stage[i])
			}
			g.last[a] = max(g.last[a], g.stage[i])
		}
	}
}

// kept reports whether a wide value outlives the stage that computes it.
func (g *generator) kept(i int) bool {
	return g.p.Steps[i].Code == scalar.Input || g.last[i] > g.stage[i]
}

// ref is how step i is read; within a stage, wide values have the index at.
func (g *generator) ref(i int, at string) string {
	s := g.p.Steps[i]
	switch {
	case s.Code == scalar.Const:
		return number(s.Imm)
	case s.Code == scalar.Input:
		return "x" + strconv.Itoa(i) + map[bool]string{true: at}[g.wide(i)]
	case g.wide(i) && g.kept(i):
		return "t" + strconv.Itoa(i) + at
	}
	return "t" + strconv.Itoa(i)
}

func number(x float64) string { return strconv.FormatFloat(x, 'e', -1, 32) + "f" }

// expr is what step i computes from single numbers.
func (g *generator) expr(i int, at string) string {
	s := g.p.Steps[i]
	var a []string
	for _, arg := range s.Args {
		a = append(a, g.ref(arg, at))
	}
	switch s.Code {
	case scalar.Add:
		return a[0] + " + " + a[1]
	case scalar.Sub:
		return a[0] + " - " + a[1]
	case scalar.Mul:
		return a[0] + " * " + a[1]
	case scalar.Sigmoid:
		return "sigmoid" + map[bool]string{true: "_fast"}[g.fast] + "(" + a[0] + ")"
	case scalar.Round:
		return "rounded(" + a[0] + ")"
	case scalar.Mean:
		return a[0] + " / (float)dim"
	case scalar.RStd:
		return "1 / sqrtf(" + a[0] + " / (float)dim + " + number(s.Imm) + ")"
	}
	return strings.Join(a, " * ") // of a sum: a term
}

// live is how many whole values a thread holds at once at most, with the sums over columns: those that a stage begins with,
// or those that it leaves.
func (g *generator) live() int {
	most := 0
	for stage := range g.stages {
		begins, leaves := 0, 0
		for i, s := range g.p.Steps {
			if !g.wide(i) || !g.kept(i) {
				continue
			}
			in := s.Code == scalar.Input
			switch {
			case in && s.Kind == scalar.Col:
				begins, leaves = begins+1, leaves+1
			case g.stage[i] < stage && stage <= g.last[i] || in && g.stage[i] == stage:
				begins++
			}
			if g.stage[i] <= stage && stage < g.last[i] && !(in && s.Kind == scalar.Col) {
				leaves++
			}
		}
		most = max(most, begins, leaves)
	}
	for _, o := range g.p.Out {
		if o.Kind == scalar.Col {
			most++
		}
	}
	return most
}

// narrowPort reports whether one of the ports is bf16.
func narrowPort(ports ...[]scalar.Port) bool {
	return slices.ContainsFunc(slices.Concat(ports...), func(o scalar.Port) bool { return o.Kind == scalar.Full && o.DType == dtype.BFloat16 })
}
