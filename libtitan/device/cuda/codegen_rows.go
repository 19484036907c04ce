package cuda

import (
	"fmt"
	"slices"

	"titan/libtitan/scalar"
)

// rows is the kernel of a program on rows: a block has one, or each of its warps (blockDim.y) does where rows are short;
// a thread has V vectors of N elements of it. Rows are dealt out in turn: where a block has several, what the next one reads is on
// its way while one is done.
func (g *generator) rows() {
	g.line("template <int N, int V, int T, int B> __global__ void __launch_bounds__(T, B) %s(%s, i64 rows, i64 dim%s) {", g.name, g.params(), g.zeros())
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
	g.begins()
	g.line("  i64 step = gridDim.x * (i64)blockDim.y, first = blockIdx.x * (i64)blockDim.y + threadIdx.y;")
	if g.several() {
		g.coming()
	}
	g.line("  for (i64 row = first; row < rows; row += step) {")
	g.rowBegins()
	for s := range g.stages {
		g.loads(s)
		g.numbers(s)
		g.compute(s)
		if g.several() {
			g.ask("    ", "row + step", s)
		}
		if g.sums(s) != nil {
			g.line("    row_sums(sums%d);", s)
		}
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
	g.ends()
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

// loads are the whole values that a stage reads first.
func (g *generator) loads(stage int) {
	in := g.loaded(stage)
	if in == nil {
		return
	}
	if g.several() {
		g.line("    arrived<%d>();", g.later())
	}
	var body []string
	for _, v := range in {
		g.line("    float x%d[V][N] = {};", v)
		if g.several() {
			body = append(body, fmt.Sprintf("take<ON>(x%d[i], a%d + own<ON, T>(i), p%d + row * dim + j);", v, v, v))
		} else {
			body = append(body, fmt.Sprintf("load(x%d[i], p%d + row * dim + j);", v, v))
		}
	}
	g.vectors("    ", body...)
}

// numbers are a row's numbers that are there before a stage.
func (g *generator) numbers(stage int) {
	for i, s := range g.p.Steps {
		switch {
		case s.Code == scalar.Sum && g.stage[i] == stage-1:
			g.line("    float t%d = sums%d[%d];", i, stage-1, slices.Index(g.sums(stage-1), i))
		case !g.wide(i) && s.Code > scalar.Const && s.Code != scalar.Sum && g.stage[i] == stage:
			g.line("    float t%d = %s;", i, g.expr(i, ""))
		}
	}
}

// compute is a stage's loop over elements.
func (g *generator) compute(stage int) {
	var body []string
	sums := g.sums(stage)
	if sums != nil {
		g.line("    float sums%d[%d] = {};", stage, len(sums))
	}
	for i, s := range g.p.Steps {
		switch {
		case s.Code == scalar.Sum && g.stage[i] == stage:
			body = append(body, fmt.Sprintf("sums%d[%d] += %s;", stage, slices.Index(sums, i), g.expr(i, "[i][k]")))
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
		case o.Kind == scalar.One:
			body = append(body, fmt.Sprintf("m%d = max(m%d, magnitude(%s));", i, i, g.ref(o.Value, "[i][k]")))
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

// sums are the sums over a row that a stage begins.
func (g *generator) sums(stage int) (out []int) {
	for i, s := range g.p.Steps {
		if s.Code == scalar.Sum && g.stage[i] == stage {
			out = append(out, i)
		}
	}
	return out
}
