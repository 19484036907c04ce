package cuda

import (
	"fmt"
	"slices"
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

// begins declares the largest magnitudes that a thread sees, ends joins those of all.
func (g *generator) begins() {
	for _, i := range g.p.Largest() {
		g.line("  u32 m%d = 0;", i)
	}
}

func (g *generator) ends() {
	for k, i := range g.p.Largest() {
		g.line("  largest_of_grid(m%d, y%d, zeros + %d);", i, i, 2*k)
	}
}

// zeros is the parameter that such kernels have.
func (g *generator) zeros() string {
	if len(g.p.Largest()) == 0 {
		return ""
	}
	return ", u32* zeros"
}

// flat is the kernel of a program that treats all elements alike: N at once, the last ones singly.
func (g *generator) flat() {
	largest := g.p.Largest()
	tops := ""
	for _, i := range largest {
		tops += fmt.Sprintf(", u32& m%d", i)
	}
	g.line("template <int N> __device__ inline void at(%s, i64 i%s) {", g.params(), tops)
	for _, o := range g.p.In {
		if o.Kind == scalar.One {
			g.line("  float x%d = widen(*p%d);", o.Value, o.Value)
		} else {
			g.line("  float x%d[N];", o.Value)
			g.line("  load(x%d, p%d + i);", o.Value, o.Value)
		}
	}
	for i := range g.p.Out {
		if !slices.Contains(largest, i) {
			g.line("  float r%d[N];", i)
		}
	}
	g.line("#pragma unroll\n  for (int k = 0; k < N; k++) {")
	for i, s := range g.p.Steps {
		if s.Code != scalar.Input && s.Code != scalar.Const {
			g.line("    float t%d = %s;", i, g.expr(i, "[k]"))
		}
	}
	for i, o := range g.p.Out {
		if slices.Contains(largest, i) {
			g.line("    m%d = max(m%d, magnitude(%s));", i, i, g.ref(o.Value, "[k]"))
		} else {
			g.line("    r%d[k] = %s;", i, g.ref(o.Value, "[k]"))
		}
	}
	g.line("  }")
	for i := range g.p.Out {
		if !slices.Contains(largest, i) {
			g.line("  store(y%d + i, r%d);", i, i)
		}
	}
	g.line("}\n")
	var names []string
	for _, o := range g.p.In {
		names = append(names, fmt.Sprintf("p%d", o.Value))
	}
	for i := range g.p.Out {
		names = append(names, fmt.Sprintf("y%d", i))
	}
	args, tops := strings.Join(names, ", "), strings.ReplaceAll(tops, "u32& ", "")
	g.line("template <int N> __global__ void __launch_bounds__(256) %s(%s, i64 n%s) {", g.name, g.params(), g.zeros())
	g.line("  i64 group = blockIdx.x * (i64)blockDim.x + threadIdx.x, whole = n / N;")
	g.begins()
	if len(largest) > 0 { // blocks go on to other elements, so that few have to be joined
		g.line("  for (; group < whole; group += gridDim.x * (i64)blockDim.x) at<N>(%s, group * N%s);", args, tops)
	} else {
		g.line("  if (group < whole) at<N>(%s, group * N);", args)
	}
	g.line("  %sif (group - whole < n - whole * N) at<1>(%s, whole * N + group - whole%s);", map[bool]string{true: "else "}[len(largest) == 0], args, tops)
	g.ends()
	g.line("}")
}
