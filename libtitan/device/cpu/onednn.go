package cpu

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// dnnl multiplies with oneDNN 2.x (Debian's libdnnl2), loaded at run time. It starts its own OpenMP threads, so calls from several
// ranks take turns. Its bits may differ from the built-in products' and with the number of threads. A product that the
// library refuses (bfloat16 on a CPU without AVX-512, say) is left to the built-in.
type dnnl struct {
	mu             sync.Mutex
	threads        int
	engine, stream uintptr
	fn             map[string]uintptr
	sgemmFn        func(transA, transB byte, m, n, k int64, alpha float32, a *float32, lda int64, b *float32, ldb int64, beta float32, c *float32, ldc int64) int32
	op             matmulOp
}

// matmulOp is what one call shows to the library. It lies in the heap, inside dnnl, so that its addresses hold during the call.
type matmulOp struct {
	dims, strides [3][2]int64
	mem           [3]dnnlDesc
	desc          dnnlDesc
	pd, primitive uintptr
	memory        [3]uintptr
	args          [3]struct {
		arg, _ int32
		memory uintptr
	}
}

// dnnlDesc has room for a dnnl_memory_desc_t or a dnnl_matmul_desc_t of oneDNN 2.x (under 4 KiB).
type dnnlDesc [8192]byte

var dnnlFunctions = []string{
	"dnnl_engine_create", "dnnl_stream_create", "dnnl_stream_wait", "dnnl_memory_desc_init_by_strides", "dnnl_matmul_desc_init",
	"dnnl_primitive_desc_create", "dnnl_primitive_desc_destroy", "dnnl_primitive_create", "dnnl_primitive_destroy", "dnnl_primitive_execute",
	"dnnl_memory_create", "dnnl_memory_destroy", "omp_set_num_threads",
}

// Values of dnnl_types.h.
const (
	dnnlCPU     = 1
	dnnlInOrder = 1
	dnnlBF16    = 2
	dnnlF32     = 3
)

// dnnlArgs number a primitive's source, weights and destination.
var dnnlArgs = [3]int32{1, 33, 17}

// loadDNNL opens the library and makes an engine and a stream on the CPU.
func loadDNNL(threads int) (*dnnl, error) {
	const lib = "libdnnl.so.2"
	h, err := purego.Dlopen(lib, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("cpu engine: products onednn: %w: install libdnnl2, or use builtin", err)
	}
	d := &dnnl{threads: threads, fn: map[string]uintptr{}}
	for _, name := range dnnlFunctions {
		if d.fn[name], err = purego.Dlsym(h, name); err != nil {
			return nil, fmt.Errorf("cpu engine: products onednn: %s: %w", lib, err)
		}
	}
	purego.RegisterLibFunc(&d.sgemmFn, h, "dnnl_sgemm")
	if !d.call("dnnl_engine_create", address(&d.engine), dnnlCPU, 0) || !d.call("dnnl_stream_create", address(&d.stream), d.engine, dnnlInOrder) {
		return nil, fmt.Errorf("cpu engine: products onednn: %s makes no CPU engine: use builtin", lib)
	}
	return d, nil
}

// address is a field's address as the library wants it; the field must lie in a dnnl, which the caller holds.
func address[T any](p *T) uintptr { return uintptr(unsafe.Pointer(p)) }

// call runs a function of the library and reports success.
func (d *dnnl) call(name string, args ...uintptr) bool {
	r, _, _ := purego.SyscallN(d.fn[name], args...)
	return int32(r) == 0
}

// enter takes the library for this goroutine and sets the OpenMP threads of its OS thread.
func (d *dnnl) enter() (leave func()) {
	d.mu.Lock()
	runtime.LockOSThread()
	purego.SyscallN(d.fn["omp_set_num_threads"], uintptr(d.threads))
	return func() {
		runtime.UnlockOSThread()
		d.mu.Unlock()
	}
}

// sgemm is [Engine.Gemm] with m, n and k above zero; false when the library refuses.
func (d *dnnl) sgemm(transA, transB bool, m, n, k int, a, b, c []float32, lda, ldb, ldc int, accumulate bool) bool {
	defer d.enter()()
	letter := map[bool]byte{false: 'N', true: 'T'}
	beta := float32(0)
	if accumulate {
		beta = 1
	}
	return d.sgemmFn(letter[transA], letter[transB], int64(m), int64(n), int64(k), 1,
		&a[0], int64(lda), &b[0], int64(ldb), beta, &c[0], int64(ldc)) == 0
}

// matrix is a stored matrix as the library sees it: op(X) with rows x cols elements of type kind.
type matrix struct {
	data       unsafe.Pointer
	rows, cols int
	ld         int
	trans      bool
	kind       uintptr
}

// dnnlMatmul is a product of bfloat16 with m, n and k above zero; false when the library refuses.
func dnnlMatmul[C elem](d *dnnl, m, n, k int, a, b operand[uint16], c []C, ldc int) bool {
	kind := uintptr(dnnlBF16)
	if scratchFor[C](1) == 0 {
		kind = dnnlF32
	}
	defer d.enter()()
	return d.matmul([3]matrix{
		{unsafe.Pointer(&a.x[0]), m, k, a.ld, a.trans, dnnlBF16},
		{unsafe.Pointer(&b.x[0]), k, n, b.ld, b.trans, dnnlBF16},
		{unsafe.Pointer(&c[0]), m, n, ldc, false, kind},
	})
}

// matmul computes x[2] = x[0]·x[1]. The library caches the code it generates for a shape, so nothing is kept here.
func (d *dnnl) matmul(x [3]matrix) (ok bool) {
	o := &d.op
	o.pd, o.primitive, o.memory = 0, 0, [3]uintptr{}
	defer d.destroy()
	for i, m := range x {
		o.dims[i], o.strides[i] = [2]int64{int64(m.rows), int64(m.cols)}, [2]int64{int64(m.ld), 1}
		if m.trans {
			o.strides[i] = [2]int64{1, int64(m.ld)}
		}
		if !d.call("dnnl_memory_desc_init_by_strides", address(&o.mem[i]), 2, address(&o.dims[i]), m.kind, address(&o.strides[i])) ||
			!d.call("dnnl_memory_create", address(&o.memory[i]), address(&o.mem[i]), d.engine, uintptr(m.data)) {
			return false
		}
		o.args[i].arg, o.args[i].memory = dnnlArgs[i], o.memory[i]
	}
	ok = d.call("dnnl_matmul_desc_init", address(&o.desc), address(&o.mem[0]), address(&o.mem[1]), 0, address(&o.mem[2])) &&
		d.call("dnnl_primitive_desc_create", address(&o.pd), address(&o.desc), 0, d.engine, 0) &&
		d.call("dnnl_primitive_create", address(&o.primitive), o.pd) &&
		d.call("dnnl_primitive_execute", o.primitive, d.stream, 3, address(&o.args)) &&
		d.call("dnnl_stream_wait", d.stream)
	runtime.KeepAlive(x)
	return ok
}

// destroy frees what matmul created.
func (d *dnnl) destroy() {
	for _, m := range d.op.memory {
		if m != 0 {
			d.call("dnnl_memory_destroy", m)
		}
	}
	if d.op.primitive != 0 {
		d.call("dnnl_primitive_destroy", d.op.primitive)
	}
	if d.op.pd != 0 {
		d.call("dnnl_primitive_desc_destroy", d.op.pd)
	}
}
