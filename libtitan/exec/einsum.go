package exec

import (
	"fmt"
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/op"
)

// product is a contraction as one matrix product: C [m, n] = op(A) [m, k] · op(B) [k, n].
type product struct {
	m, n, k        int
	transA, transB bool
	swap           bool // A is the second input
}

// lower reads a contraction as a matrix product. Its letters must fall into rows (of one input and the result),
// columns (of the other and the result) and terms (of both inputs), each together and in one order.
func lower(spec string, a, b []int) (product, error) {
	in, c, _ := strings.Cut(spec, "->")
	ta, tb, _ := strings.Cut(in, ",")
	size := map[rune]int{}
	for d, l := range ta {
		size[l] = a[d]
	}
	for d, l := range tb {
		size[l] = b[d]
	}
	pick := func(term, with, without string) (letters string, n int) {
		n = 1
		for _, l := range term {
			if strings.ContainsRune(with, l) && !strings.ContainsRune(without, l) {
				letters, n = letters+string(l), n*size[l]
			}
		}
		return letters, n
	}
	var p product
	if first, _ := pick(ta, c, tb); !strings.HasPrefix(c, first) {
		p.swap = true
		ta, tb = tb, ta
	}
	var rows, cols, terms string
	rows, p.m = pick(ta, c, tb)
	cols, p.n = pick(tb, c, ta)
	terms, p.k = pick(ta, tb, c)
	p.transA, p.transB = ta == terms+rows && ta != rows+terms, tb == cols+terms && tb != terms+cols
	if c != rows+cols || ta != rows+terms && !p.transA || tb != terms+cols && !p.transB {
		return p, fmt.Errorf("%s is no matrix product", spec)
	}
	return p, nil
}

func bindEinsum(c call) (kernel, error) {
	p, err := lower(c.attr.(op.EinsumAttr).Spec, c.in[0].Shape, c.in[1].Shape)
	if err != nil {
		return nil, err
	}
	a, b, out, add := c.in[0], c.in[1], c.out[0], c.add[0]
	if p.swap {
		a, b = b, a
	}
	lda, ldb := p.k, p.n
	if p.transA {
		lda = p.m
	}
	if p.transB {
		ldb = p.k
	}
	switch {
	case !a.narrow():
		return sure(func() {
			c.e.Gemm(p.transA, p.transB, p.m, p.n, p.k, a.f32(), b.f32(), out.f32(), lda, ldb, p.n, add)
		}), nil
	case out.DType == dtype.Float32:
		return sure(func() {
			c.e.GemmBF16(p.transA, p.transB, p.m, p.n, p.k, a.bf16(), b.bf16(), out.f32(), lda, ldb, p.n, add)
		}), nil
	}
	return sure(func() {
		c.e.GemmBF16Out(p.transA, p.transB, p.m, p.n, p.k, a.bf16(), b.bf16(), out.bf16(), lda, ldb, p.n)
	}), nil
}
