package cuda

import (
	"fmt"
	"strings"

	"titan/libtitan/scalar"
)

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
