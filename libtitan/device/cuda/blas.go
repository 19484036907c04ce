package cuda

import (
	"fmt"

	"titan/libtitan/dtype"
)

// blas multiplies matrices with cuBLASLt.
type blas struct {
	create, matmul, heuristic         uintptr
	descCreate, descSet, layoutCreate uintptr
	prefCreate, prefSet, prefDestroy  uintptr
	handle                            uintptr
	factors                           *Host // 0 and 1, read while a product runs
	products                          map[Product]*product
	float8                            map[Float8Product]*product
	workspace                         Ptr
}

// Values of cublasLt.h.
const (
	computeFloat     = 68 // CUBLAS_COMPUTE_32F: sums in float32, float32 factors not rounded to TF32
	realFloat        = 0
	realBF16         = 14
	descTransA       = 3
	descTransB       = 4
	prefWorkspace    = 1
	prefAlignment    = 5 // of A; B, C and D follow
	workspaceBytes   = 64 << 20
	operandAlignment = 16
)

func newBlas(e *Engine) (*blas, error) {
	b := &blas{products: map[Product]*product{}, float8: map[Float8Product]*product{}}
	err := e.find.bind(cublasLtLib, map[string]*uintptr{
		"cublasLtCreate": &b.create, "cublasLtMatmul": &b.matmul, "cublasLtMatmulAlgoGetHeuristic": &b.heuristic,
		"cublasLtMatmulDescCreate": &b.descCreate, "cublasLtMatmulDescSetAttribute": &b.descSet,
		"cublasLtMatrixLayoutCreate": &b.layoutCreate, "cublasLtMatmulPreferenceCreate": &b.prefCreate,
		"cublasLtMatmulPreferenceSetAttribute": &b.prefSet, "cublasLtMatmulPreferenceDestroy": &b.prefDestroy,
	})
	if err != nil {
		return nil, err
	}
	if err := b.check("cublasLtCreate", call(b.create, uintptr(ref(&b.handle)))); err != nil {
		return nil, err
	}
	if b.factors, err = e.AllocHost(16); err != nil {
		return nil, err
	}
	copy(HostOf[float32](b.factors, 0, 2), []float32{0, 1})
	b.workspace, err = e.Alloc(workspaceBytes)
	return b, err
}

var blasStatus = map[int32]string{1: "NOT_INITIALIZED", 3: "ALLOC_FAILED", 7: "INVALID_VALUE", 8: "ARCH_MISMATCH", 11: "MAPPING_ERROR",
	13: "EXECUTION_FAILED", 14: "INTERNAL_ERROR", 15: "NOT_SUPPORTED", 16: "LICENSE_ERROR"}

func (b *blas) check(what string, rc int32) error {
	if rc == 0 {
		return nil
	}
	return &Error{what, "CUBLAS_STATUS_" + blasStatus[rc], rc}
}

// Product is C [M, N] = op(A) [M, K] · op(B) [K, N], all row-major and dense: A is [K, M] if TransA, B is [N, K] if
// TransB. In is the type of A and B, Out that of C; sums are float32. Add adds to what C holds.
type Product struct {
	M, N, K        int
	TransA, TransB bool
	In, Out        dtype.DType
	Add            bool
}

func (p Product) String() string {
	return fmt.Sprintf("product [%d, %d, %d] of %v", p.M, p.N, p.K, p.In)
}

// flops is the operations of a product.
func flops(m, n, k int) float64 { return 2 * float64(m) * float64(n) * float64(k) }

// product is a Product as the library has it. The library's matrices are column-major, so it is given the transposes:
// Cᵀ = op(B)ᵀ · op(A)ᵀ.
type product struct {
	desc, first, second, result uintptr
	algo                        heuristic
}

// heuristic is cublasLtMatmulHeuristicResult_t.
type heuristic struct {
	algo      [8]uint64
	workspace uint64
	state     int32
	waves     float32
	_         [4]int32
}

// Product binds p to memory, each matrix aligned to 16 bytes.
func (e *Engine) Product(p Product, c, a, b Ptr) (Work, error) {
	if p.M == 0 || p.N == 0 || p.K == 0 {
		if p.Add {
			return func() error { return nil }, nil
		}
		return func() error { return e.Stream.Zero(c, p.M*p.N*p.Out.Size()) }, nil
	}
	from := Ptr(0)
	if p.Add {
		from = c
	}
	return e.multiply(p, c, a, b, from)
}

// ProductPlus writes to d the product p of a and b, plus c, rounded once; c has the type and the shape of d.
func (e *Engine) ProductPlus(p Product, d, a, b, c Ptr) (Work, error) {
	if p.M == 0 || p.N == 0 || p.K == 0 {
		return func() error { return e.Stream.Copy(d, c, p.M*p.N*p.Out.Size()) }, nil
	}
	return e.multiply(p, d, a, b, c)
}

// multiply writes a product to d, plus what is at c unless that is 0.
func (e *Engine) multiply(p Product, d, a, b, c Ptr) (Work, error) {
	l := e.blas
	have := l.products[p]
	if have == nil {
		var err error
		if have, err = l.plan(p); err != nil {
			return nil, err
		}
		if p.competes() {
			into := func(d Ptr) Work { return l.bind(e.Stream, p, have, d, a, b, c) }
			if err := e.compete(p.String(), have, flops(p.M, p.N, p.K), p.M*p.N*p.Out.Size(), into); err != nil {
				return nil, err
			}
		}
		l.products[p] = have
	}
	return l.bind(e.Stream, p, have, d, a, b, c), nil
}

// bind ties a product to memory.
func (l *blas) bind(s *Stream, p Product, have *product, d, a, b, c Ptr) Work {
	zero, one := l.factors.addr(0), l.factors.addr(4)
	beta, what := one, p.String()
	if c == 0 {
		beta, c = zero, d
	}
	return func() error {
		return l.check(what, call(l.matmul, l.handle, have.desc, one, uintptr(b), have.first, uintptr(a), have.second, beta, uintptr(c), have.result,
			uintptr(d), have.result, uintptr(ref(&have.algo.algo)), uintptr(l.workspace), workspaceBytes, s.handle))
	}
}

// plan describes p to the library and takes the algorithm that it puts first.
func (b *blas) plan(p Product) (*product, error) {
	d := &product{}
	if err := b.check("cublasLtMatmulDescCreate", call(b.descCreate, uintptr(ref(&d.desc)), computeFloat, realFloat)); err != nil {
		return nil, err
	}
	for _, t := range []struct {
		attr  uintptr
		trans bool
	}{{descTransA, p.TransB}, {descTransB, p.TransA}} {
		if op := int32(1); t.trans {
			if err := b.set(d.desc, t.attr, uintptr(ref(&op)), 4); err != nil {
				return nil, err
			}
		}
	}
	for _, m := range []struct {
		to         *uintptr
		t          dtype.DType
		rows, cols int
		trans      bool
	}{{&d.first, p.In, p.K, p.N, p.TransB}, {&d.second, p.In, p.M, p.K, p.TransA}, {&d.result, p.Out, p.M, p.N, false}} {
		if m.trans {
			m.rows, m.cols = m.cols, m.rows
		}
		if err := b.layout(m.to, m.t, m.rows, m.cols); err != nil {
			return nil, err
		}
	}
	return d, b.choose(p.String(), d)
}

// set sets an attribute of a description to bytes at an address.
//
//go:uintptrescapes
func (b *blas) set(desc, attr, at, bytes uintptr) error {
	return b.check(fmt.Sprintf("cublasLtMatmulDescSetAttribute %d", attr), call(b.descSet, desc, attr, at, bytes))
}

// layout describes a row-major matrix.
func (b *blas) layout(to *uintptr, t dtype.DType, rows, cols int) error {
	kind := map[dtype.DType]uintptr{dtype.Float32: realFloat, dtype.BFloat16: realBF16, dtype.Float8E4M3FN: realE4M3, dtype.Float8E5M2: realE5M2}[t]
	return b.check("cublasLtMatrixLayoutCreate", call(b.layoutCreate, uintptr(ref(to)), kind, uintptr(cols), uintptr(rows), uintptr(cols)))
}

// choose takes the algorithm that the library puts first.
func (b *blas) choose(what string, d *product) error {
	algos, err := b.choices(what, d, 1)
	if err == nil {
		d.algo = algos[0]
	}
	return err
}

// choices are up to n algorithms for a product, those that the library thinks fastest first.
func (b *blas) choices(what string, d *product, n int) ([]heuristic, error) {
	var pref uintptr
	if err := b.check("cublasLtMatmulPreferenceCreate", call(b.prefCreate, uintptr(ref(&pref)))); err != nil {
		return nil, err
	}
	defer call(b.prefDestroy, pref)
	room := uint64(workspaceBytes)
	if err := b.check("cublasLtMatmulPreferenceSetAttribute", call(b.prefSet, pref, prefWorkspace, uintptr(ref(&room)), 8)); err != nil {
		return nil, err
	}
	for i := range 4 {
		align := uint32(operandAlignment)
		if err := b.check("cublasLtMatmulPreferenceSetAttribute", call(b.prefSet, pref, prefAlignment+uintptr(i), uintptr(ref(&align)), 4)); err != nil {
			return nil, err
		}
	}
	var got int32
	algos := make([]heuristic, n)
	rc := call(b.heuristic, b.handle, d.desc, d.first, d.second, d.result, d.result, pref, uintptr(n), uintptr(ref(&algos[0])), uintptr(ref(&got)))
	if rc == 0 && got == 0 {
		rc = 15
	}
	return algos[:got], b.check(what, rc)
}
