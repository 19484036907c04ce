package cuda

import (
	"fmt"

	"titan/libtitan/dtype"
)

// Float8Product is C [M, N] = A [M, K] · Bᵀ, all row-major and dense, A and B [N, K] float8: the one arrangement that tensor cores
// read. Each has one scale, or one for each of its rows. Sums are float32; Fast leaves more of them to the tensor cores, which keep
// fewer bits. Add adds to what C, of float32, holds.
type Float8Product struct {
	M, N, K      int
	A, B         dtype.DType // one of them may be e5m2
	Out          dtype.DType
	RowsA, RowsB bool // scaled by row
	Fast         bool
	Add          bool
}

func (p Float8Product) String() string {
	return fmt.Sprintf("product [%d, %d, %d] of %v and %v in %v", p.M, p.N, p.K, p.A, p.B, p.Out)
}

// Values of cublasLt.h.
const (
	realE4M3      = 28
	realE5M2      = 29
	descScaleA    = 17 // a pointer; B's follows
	descFastAccum = 25
	descModeA     = 31 // how A is scaled; B's follows
	scaleTensor   = 0  // CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F
	scaleRows     = 3  // CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
)

// Float8Product binds p to memory; the reciprocals of the scales are float32 on the device.
func (e *Engine) Float8Product(p Float8Product, c, a, aInverse, b, bInverse Ptr) (Work, error) {
	if p.M%float8Multiple != 0 || p.N%float8Multiple != 0 || p.K%float8Multiple != 0 {
		return nil, fmt.Errorf("cuda: %s: all sizes have to be multiples of %d: choose sequence length and batch so", p, float8Multiple)
	}
	if p.M == 0 || p.N == 0 || p.K == 0 {
		return func() error { return nil }, nil
	}
	if p.RowsA != p.RowsB {
		return e.spreadScale(p, c, a, aInverse, b, bInverse)
	}
	l := e.blas
	have := l.float8[p]
	if have == nil {
		var err error
		if have, err = l.planFloat8(p); err != nil {
			return nil, err
		}
		if p.Fast && p.K <= fewTerms {
			into := func(d Ptr) Work { return l.bindFloat8(e.Stream, p, have, d, a, aInverse, b, bInverse, c) }
			if err := e.compete(p.String(), have, flops(p.M, p.N, p.K), p.M*p.N*p.Out.Size(), into); err != nil {
				return nil, err
			}
		}
		l.float8[p] = have
	}
	return l.bindFloat8(e.Stream, p, have, c, a, aInverse, b, bInverse, c), nil
}

// bindFloat8 ties a product to memory: it goes to d, plus what is at c if p adds.
func (l *blas) bindFloat8(s *Stream, p Float8Product, have *product, d, a, aInverse, b, bInverse, c Ptr) Work {
	beta, what := l.factors.addr(4), p.String()
	if !p.Add {
		beta, c = l.factors.addr(0), d
	}
	scales := [2]uintptr{uintptr(bInverse), uintptr(aInverse)} // in the library's order
	return func() error {
		for i := range scales {
			if err := l.set(have.desc, descScaleA+uintptr(i), uintptr(ref(&scales[i])), 8); err != nil {
				return err
			}
		}
		return l.check(what, call(l.matmul, l.handle, have.desc, l.factors.addr(4), uintptr(b), have.first, uintptr(a), have.second, beta, uintptr(c), have.result,
			uintptr(d), have.result, uintptr(ref(&have.algo.algo)), uintptr(l.workspace), workspaceBytes, s.handle))
	}
}

// spreadScale is Float8Product where one matrix has one scale and the other one for each row: the library wants both alike.
func (e *Engine) spreadScale(p Float8Product, c, a, aInverse, b, bInverse Ptr) (Work, error) {
	one, rows := &aInverse, p.M
	if p.RowsA {
		one, rows = &bInverse, p.N
	}
	room, err := e.scratchFor(4 * rows)
	if err != nil {
		return nil, err
	}
	name, err := e.float8Kernel("spread")
	if err != nil {
		return nil, err
	}
	spread, err := e.bind(name, grid{x: blocksOf(rows, maxThreads), threads: maxThreads}, pack(*one, room, rows))
	if err != nil {
		return nil, err
	}
	*one, p.RowsA, p.RowsB = room, true, true
	w, err := e.Float8Product(p, c, a, aInverse, b, bInverse)
	return sequence(spread, w), err
}

// planFloat8 describes p: Cᵀ = B · Aᵀ in the library's columns, its first matrix transposed.
func (b *blas) planFloat8(p Float8Product) (*product, error) {
	d := &product{}
	if err := b.check("cublasLtMatmulDescCreate", call(b.descCreate, uintptr(ref(&d.desc)), computeFloat, realFloat)); err != nil {
		return nil, err
	}
	mode := int32(scaleTensor)
	if p.RowsA {
		mode = scaleRows
	}
	for attr, v := range map[uintptr]int32{descTransA: 1, descModeA: mode, descModeA + 1: mode} {
		if err := b.set(d.desc, attr, uintptr(ref(&v)), 4); err != nil {
			return nil, err
		}
	}
	if p.Fast {
		fast := int8(1)
		if err := b.set(d.desc, descFastAccum, uintptr(ref(&fast)), 1); err != nil {
			return nil, err
		}
	}
	scale := b.factors.addr(4) // where, to choose by: each product has its own
	for i := range uintptr(2) {
		if err := b.set(d.desc, descScaleA+i, uintptr(ref(&scale)), 8); err != nil {
			return nil, err
		}
	}
	for _, m := range []struct {
		to         *uintptr
		t          dtype.DType
		rows, cols int
	}{{&d.first, p.B, p.N, p.K}, {&d.second, p.A, p.M, p.K}, {&d.result, p.Out, p.M, p.N}} {
		if err := b.layout(m.to, m.t, m.rows, m.cols); err != nil {
			return nil, err
		}
	}
	return d, b.choose(p.String(), d)
}
