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

// params are the kernel's pointers.
func (g *generator) params() string {
	var out []string
	for _, o := range g.p.In {
		out = append(out, fmt.Sprintf("const %s* __restrict__ p%d", cname(o.DType), o.Value))
	}
	for i, o := range g.p.Out {
		out = append(out, fmt.Sprintf("%s* __restrict__ y%d", cname(o.DType), i))
	}
	return strings.Join(out, ", ")
}

// flat is the kernel of a program that treats all elements alike: N at once, the last ones singly.
func (g *generator) flat() {
	g.line("template <int N> __device__ inline void at(%s, i64 i) {", g.params())
	for _, o := range g.p.In {
		if o.Kind == scalar.One {
			g.line("  float x%d = widen(*p%d);", o.Value, o.Value)
		} else {
			g.line("  float x%d[N];", o.Value)
			g.line("  load(x%d, p%d + i);", o.Value, o.Value)
		}
	}
	for i := range g.p.Out {
		g.line("  float r%d[N];", i)
	}
	g.line("#pragma unroll\n  for (int k = 0; k < N; k++) {")
	for i, s := range g.p.Steps {
		if s.Code != scalar.Input && s.Code != scalar.Const {
			g.line("    float t%d = %s;", i, g.expr(i, "[k]"))
		}
	}
	for i, o := range g.p.Out {
		g.line("    r%d[k] = %s;", i, g.ref(o.Value, "[k]"))
	}
	g.line("  }")
	for i := range g.p.Out {
		g.line("  store(y%d + i, r%d);", i, i)
	}
	g.line("}\n")
	var names []string
	for _, o := range g.p.In {
		names = append(names, fmt.Sprintf("p%d", o.Value))
	}
	for i := range g.p.Out {
		names = append(names, fmt.Sprintf("y%d", i))
	}
	g.line("template <int N> __global__ void __launch_bounds__(256) %s(%s, i64 n) {", g.name, g.params())
	g.line("  i64 group = blockIdx.x * (i64)blockDim.x + threadIdx.x, whole = n / N;")
	g.line("  if (group < whole) at<N>(%s, group * N);", strings.Join(names, ", "))
	g.line("  else if (group - whole < n - whole * N) at<1>(%s, whole * N + group - whole);", strings.Join(names, ", "))
	g.line("}")
}

// rows is the kernel of a program on rows: a block has one, or each of its warps (blockDim.y) does where rows are short;
// a thread has V vectors of N elements of it. Rows are dealt out in turn.
func (g *generator) rows() {
	g.line("template <int N, int V, int T, int B> __global__ void __launch_bounds__(T, B) %s(%s, i64 rows, i64 dim) {", g.name, g.params())
	for _, o := range g.p.In {
		switch o.Kind {
		case scalar.Col:
			g.line("  float x%d[V][N] = {};", o.Value)
			g.vectors("  ", fmt.Sprintf("load(x%d[i], p%d + j);", o.Value, o.Value))
		case scalar.One:
			g.line("  float x%d = widen(*p%d);", o.Value, o.Value)
		}
	}
	for i, o := range g.p.Out {
		if o.Kind == scalar.Col {
			g.line("  float s%d[V][N] = {};", i)
		}
	}
	g.line("  i64 step = gridDim.x * (i64)blockDim.y, first = blockIdx.x * (i64)blockDim.y + threadIdx.y;")
	g.line("  for (i64 row = first; row < rows; row += step) {")
	g.prefetch()
	for _, o := range g.p.In {
		if o.Kind == scalar.Row {
			g.line("    float x%d = widen(p%d[row]);", o.Value, o.Value)
		}
	}
	for s := range g.stages {
		g.loads(s)
		g.numbers(s)
		g.compute(s)
	}
	for i, o := range g.p.Out {
		if o.Kind == scalar.Row {
			g.line("    if (threadIdx.x == 0) put(y%d + row, %s);", i, g.ref(o.Value, ""))
		}
	}
	g.line("  }")
	for i, o := range g.p.Out {
		if o.Kind == scalar.Col {
			g.vectors("  ", fmt.Sprintf("store(y%d + first * dim + j, s%d[i]);", i, i))
		}
	}
	g.line("}")
}

// vectors writes a loop over a thread's vectors of columns, j being the first of each.
func (g *generator) vectors(indent string, body ...string) {
	g.line("#pragma unroll")
	g.line("%sfor (int i = 0; i < V; i++) {", indent)
	g.line("%s  int j = (threadIdx.x + i * blockDim.x) * N;", indent)
	g.line("%s  if (j >= dim) continue;", indent)
	for _, b := range body {
		g.line("%s  %s", indent, b)
	}
	g.line("%s}", indent)
}

// full lists the whole inputs that are loaded in a stage.
func (g *generator) full(ok func(stage int) bool) (out []int) {
	for _, o := range g.p.In {
		if o.Kind == scalar.Full && ok(g.stage[o.Value]) {
			out = append(out, o.Value)
		}
	}
	return out
}

// prefetch asks for what later stages load of this row, and for the next row.
func (g *generator) prefetch() {
	var body []string
	for _, v := range g.full(func(stage int) bool { return stage > 0 }) {
		body = append(body, fmt.Sprintf("ahead<N>(p%d + row * dim + j);", v))
	}
	next := "if (row + step < rows) "
	for i, v := range g.full(func(int) bool { return true }) {
		if i > 0 {
			next += ", "
		}
		next += fmt.Sprintf("ahead<N>(p%d + (row + step) * dim + j)", v)
	}
	g.vectors("    ", append(body, next+";")...)
}

// loads are the whole values that a stage reads first.
func (g *generator) loads(stage int) {
	in := g.full(func(s int) bool { return s == stage })
	if in == nil {
		return
	}
	var body []string
	for _, v := range in {
		g.line("    float x%d[V][N] = {};", v)
		body = append(body, fmt.Sprintf("load(x%d[i], p%d + row * dim + j);", v, v))
	}
	g.vectors("    ", body...)
}

// numbers are a row's numbers that are there before a stage.
func (g *generator) numbers(stage int) {
	for i, s := range g.p.Steps {
		switch {
		case s.Code == scalar.Sum && g.stage[i] == stage-1:
			g.line("    float t%d = block_sum(a%d);", i, i)
		case !g.wide(i) && s.Code > scalar.Const && s.Code != scalar.Sum && g.stage[i] == stage:
			g.line("    float t%d = %s;", i, g.expr(i, ""))
		}
	}
}

// compute is a stage's loop over elements.
func (g *generator) compute(stage int) {
	var body []string
	for i, s := range g.p.Steps {
		switch {
		case s.Code == scalar.Sum && g.stage[i] == stage:
			g.line("    float a%d = 0;", i)
			body = append(body, fmt.Sprintf("a%d += %s;", i, g.expr(i, "[i][k]")))
		case g.wide(i) && s.Code != scalar.Input && g.stage[i] == stage && g.kept(i):
			g.line("    float t%d[V][N];", i)
			body = append(body, fmt.Sprintf("t%d[i][k] = %s;", i, g.expr(i, "[i][k]")))
		case g.wide(i) && s.Code != scalar.Input && g.stage[i] == stage:
			body = append(body, fmt.Sprintf("float t%d = %s;", i, g.expr(i, "[i][k]")))
		}
	}
	var before, after []string
	for i, o := range g.p.Out {
		switch {
		case stage < g.stages-1:
		case o.Kind == scalar.Full:
			before = append(before, fmt.Sprintf("float r%d[N];", i))
			body = append(body, fmt.Sprintf("r%d[k] = %s;", i, g.ref(o.Value, "[i][k]")))
			after = append(after, fmt.Sprintf("store(y%d + row * dim + j, r%d);", i, i))
		case o.Kind == scalar.Col:
			body = append(body, fmt.Sprintf("s%d[i][k] += %s;", i, g.ref(o.Value, "[i][k]")))
		}
	}
	if body == nil {
		return
	}
	lines := append(before, "#pragma unroll", "for (int k = 0; k < N; k++) {")
	for _, b := range body {
		lines = append(lines, "  "+b)
	}
	g.vectors("    ", append(append(lines, "}"), after...)...)
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
