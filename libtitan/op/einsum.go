package op

import (
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// EinsumAttr is a contraction of two tensors.
type EinsumAttr struct {
	Spec string      // "bsk,nk->bsn"
	Out  dtype.DType // of the result; sums are float32 or wider in any case
}

var einsumOp = &graph.Op{
	Name:   "einsum",
	CanAdd: true,
	Rule:   func(n *graph.Node) string { return n.Attr.(EinsumAttr).Spec },
	Cut:    func(n *graph.Node) []string { return each(n.Attr.(EinsumAttr).Spec) }, // sums of parts are sums
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.Attr.(EinsumAttr).Out} },
	// The gradient of a contraction is a contraction: the letters change places.
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		in, out, _ := strings.Cut(n.Attr.(EinsumAttr).Spec, "->")
		a, b, _ := strings.Cut(in, ",")
		return []*graph.Value{
			g.Add(n.Op, EinsumAttr{out + "," + b + "->" + a, gradType(n.In[0])}, d[0], n.In[1])[0],
			g.Add(n.Op, EinsumAttr{out + "," + a + "->" + b, gradType(n.In[1])}, d[0], n.In[0])[0],
		}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		return einsum(n.Attr.(EinsumAttr).Spec, n.Results[0].Shape, in...)
	},
}

// Einsum contracts a and b by index notation: Einsum(g, "bsk,nk->bsn", x, w) is the linear layer x·wᵀ.
func Einsum(g *graph.Graph, spec string, a, b *graph.Value) *graph.Value {
	return g.Add(einsumOp, EinsumAttr{spec, a.DType}, a, b)[0]
}

// each lists the letters of a rule.
func each(rule string) (out []string) {
	for i, l := range rule {
		if 'a' <= l && l <= 'z' && strings.IndexRune(rule, l) == i {
			out = append(out, string(l))
		}
	}
	return out
}

// einsum is the reference: a contraction of two arrays into one of that shape.
func einsum(spec string, shape []int, in ...graph.Array) []graph.Array {
	left, right, _ := strings.Cut(spec, "->")
	a, b, _ := strings.Cut(left, ",")
	size, letters := map[byte]int{}, ""
	for i, term := range []string{a, b} {
		for d := range len(term) {
			if _, ok := size[term[d]]; !ok {
				letters += term[d : d+1]
			}
			size[term[d]] = in[i].Shape[d]
		}
	}
	out := graph.NewArray(shape...)
	sa, sb, so := strides(a, letters, size), strides(b, letters, size), strides(right, letters, size)
	var walk func(l, ia, ib, io int)
	walk = func(l, ia, ib, io int) {
		if l == len(letters) {
			out.Data[io] += in[0].Data[ia] * in[1].Data[ib]
			return
		}
		for i := range size[letters[l]] {
			walk(l+1, ia+i*sa[l], ib+i*sb[l], io+i*so[l])
		}
	}
	walk(0, 0, 0, 0)
	return []graph.Array{out}
}

// strides gives, for each letter, how far one step along it moves in a dense tensor with dims term.
func strides(term, letters string, size map[byte]int) []int {
	s := make([]int, len(letters))
	step := 1
	for d := len(term) - 1; d >= 0; d-- {
		s[strings.IndexByte(letters, term[d])] += step
		step *= size[term[d]]
	}
	return s
}
