package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// dnn is cuDNN with a handle on the engine's stream, and what was planned with it. Its backend API describes an
// operation graph by descriptors; numbers are those of cudnn_graph.h.
type dnn struct {
	create, setStream, descCreate, descSet, descGet, descFinalize, execute, lastError uintptr
	handle                                                                            uintptr
	constants                                                                         *Host // by-value scalars, read at each execution
	numConstants                                                                      int
	plans                                                                             map[dnnKey]*dnnPlan
}

type dnnKey struct {
	shape            AttnShape // without positions
	masked, backward bool
	gap              int // of a backward: between rows of dv
}

// dnnPlan is a graph that cuDNN has an engine for, and the ids of the tensors that it wants the addresses of.
type dnnPlan struct {
	plan      uintptr
	workspace int
	constants map[int64]uintptr // by id: host addresses
}

// dnnRefused is a graph that no engine takes.
type dnnRefused struct{ reason string }

func (e *dnnRefused) Error() string { return "cuda: cuDNN takes no such graph: " + e.reason }

func refused(err error) bool {
	var r *dnnRefused
	return errors.As(err, &r)
}

// maxConstants is how many scalars all plans together may have.
const maxConstants = 1024

// cudnn opens the library when it is first needed.
func (e *Engine) cudnn() (*dnn, error) {
	if e.dnn != nil {
		return e.dnn, nil
	}
	d := &dnn{plans: map[dnnKey]*dnnPlan{}}
	err := e.find.bind(cudnnLib, map[string]*uintptr{
		"cudnnCreate": &d.create, "cudnnSetStream": &d.setStream, "cudnnBackendCreateDescriptor": &d.descCreate,
		"cudnnBackendSetAttribute": &d.descSet, "cudnnBackendGetAttribute": &d.descGet, "cudnnBackendFinalize": &d.descFinalize,
		"cudnnBackendExecute": &d.execute, "cudnnGetLastErrorString": &d.lastError,
	})
	if err != nil {
		return nil, err
	}
	if d.constants, err = e.AllocHost(4 * maxConstants); err != nil {
		return nil, err
	}
	if err := d.check("cudnnCreate", call(d.create, uintptr(ref(&d.handle)))); err != nil {
		return nil, err
	}
	e.dnn = d
	return d, d.check("cudnnSetStream", call(d.setStream, d.handle, e.Stream.handle))
}

func (d *dnn) check(what string, rc int32) error {
	if rc == 0 {
		return nil
	}
	message := make([]byte, 512)
	call(d.lastError, uintptr(ref(&message[0])), uintptr(len(message)))
	n := 0
	for n < len(message) && message[n] != 0 && message[n] != '\n' {
		n++
	}
	return &Error{what, "cuDNN status: " + string(message[:n]), rc}
}

// Descriptor kinds, attribute types, data types, pointwise modes and reductions.
const (
	descPointwise, descEngineConfig, descHeuristics, descPlan       = 0, 3, 4, 5
	descPointwiseOp, descGraph, descPack, descTensor                = 13, 15, 16, 17
	descMatmul, descMatmulOp, descReduce, descReduceOp, descReshape = 18, 19, 21, 22, 31

	attrHandle, attrDataType, attrBool, attrInt64, attrFloat   = 0, 1, 2, 3, 4
	attrAddress, attrHeuristic, attrMode, attrDesc, attrReduce = 6, 8, 14, 15, 18

	dnnFloat, dnnInt32, dnnBF16, dnnBool = 0, 4, 9, 11

	opAdd, opMul, opDiv, opSub, opExp, opLog = 0, 1, 6, 9, 13, 15
	opIdentity, opNotLess, opIndex, opSelect = 21, 303, 501, 601
	reduceSum, reduceMax                     = 0, 3
)

// builder makes an operation graph. The first failure stops it and is found in err.
type builder struct {
	*dnn
	ops       []uintptr
	ids       int64
	constants map[int64]uintptr
	err       error
}

func (d *dnn) builder() *builder { return &builder{dnn: d, ids: 100, constants: map[int64]uintptr{}} }

func (b *builder) do(what string, rc int32) {
	if b.err == nil {
		b.err = b.check(what, rc)
	}
}

func (b *builder) desc(kind uintptr) (p uintptr) {
	b.do("cudnnBackendCreateDescriptor", call(b.descCreate, kind, uintptr(ref(&p))))
	return p
}

func set[T any](b *builder, desc, attr, kind uintptr, v ...T) {
	if b.err == nil {
		b.do(fmt.Sprintf("cudnnBackendSetAttribute %d", attr), call(b.descSet, desc, attr, kind, uintptr(len(v)), uintptr(ref(unsafe.SliceData(v)))))
	}
}

func get[T any](b *builder, desc, attr, kind uintptr, out []T) int {
	var n int64
	if b.err == nil {
		b.do(fmt.Sprintf("cudnnBackendGetAttribute %d", attr), call(b.descGet, desc, attr, kind, uintptr(len(out)), uintptr(ref(&n)), uintptr(ref(unsafe.SliceData(out)))))
	}
	return int(n)
}

func (b *builder) finalize(what string, desc uintptr) uintptr {
	if b.err == nil {
		b.do("cudnnBackendFinalize of a "+what, call(b.descFinalize, desc))
	}
	return desc
}

// dims are sizes or strides of [batch, head, row, column].
type dims [4]int64

// dense are row-major strides.
func (n dims) dense() dims { return dims{n[1] * n[2] * n[3], n[2] * n[3], n[3], 1} }

// dnnTensor is a value of the graph.
type dnnTensor struct {
	desc           uintptr
	sizes, strides dims
}

// tensor describes a value: id 0 is one that lies in no memory.
func (b *builder) tensor(kind int32, sizes, strides dims, id int64, scalar bool) dnnTensor {
	virtual := id == 0
	if virtual {
		b.ids++
		id = b.ids
	}
	t := dnnTensor{b.desc(descTensor), sizes, strides}
	set(b, t.desc, 901, attrDataType, kind)
	set(b, t.desc, 902, attrInt64, sizes[:]...)
	set(b, t.desc, 903, attrInt64, strides[:]...)
	set(b, t.desc, 906, attrInt64, id)
	set(b, t.desc, 900, attrInt64, int64(16)) // byte alignment
	if virtual {
		set(b, t.desc, 907, attrBool, true)
	}
	if scalar {
		set(b, t.desc, 908, attrBool, true)
	}
	b.finalize("tensor", t.desc)
	return t
}

func (b *builder) virtual(kind int32, sizes dims) dnnTensor {
	return b.tensor(kind, sizes, sizes.dense(), 0, false)
}

// scalar is a constant, read from the host's memory at each execution.
func (b *builder) scalar(v float32) dnnTensor {
	if b.err == nil && b.numConstants == maxConstants {
		b.err = fmt.Errorf("cuda: more than %d constants in cuDNN graphs", maxConstants)
	}
	if b.err != nil {
		return dnnTensor{}
	}
	HostOf[float32](b.dnn.constants, 0, maxConstants)[b.numConstants] = v
	b.ids++
	b.constants[b.ids] = b.dnn.constants.addr(4 * b.numConstants)
	b.numConstants++
	one := dims{1, 1, 1, 1}
	return b.tensor(dnnFloat, one, one, b.ids, true)
}

// matmul computes c = a·b; sums are float.
func (b *builder) matmul(x, y, out dnnTensor) {
	m := b.desc(descMatmul)
	set(b, m, 1500, attrDataType, int32(dnnFloat))
	b.finalize("product", m)
	op := b.desc(descMatmulOp)
	set(b, op, 1520, attrDesc, x.desc)
	set(b, op, 1521, attrDesc, y.desc)
	set(b, op, 1522, attrDesc, out.desc)
	set(b, op, 1523, attrDesc, m)
	b.ops = append(b.ops, b.finalize("product", op))
}

// pointwise computes out = mode(in...) in type math; a third input selects. axis matters to opIndex only.
func (b *builder) pointwise(mode, math int32, axis int64, out dnnTensor, in ...dnnTensor) dnnTensor {
	p := b.desc(descPointwise)
	set(b, p, 0, attrMode, mode)
	set(b, p, 1, attrDataType, math)
	if mode == opIndex {
		set(b, p, 9, attrInt64, axis)
	}
	b.finalize("pointwise", p)
	op := b.desc(descPointwiseOp)
	set(b, op, 750, attrDesc, p)
	set(b, op, 753, attrDesc, out.desc)
	for i, attr := range []uintptr{751, 752, 758}[:len(in)] {
		set(b, op, attr, attrDesc, in[i].desc)
	}
	set(b, op, 754, attrFloat, float32(1))
	set(b, op, 755, attrFloat, float32(1))
	b.ops = append(b.ops, b.finalize(fmt.Sprintf("pointwise operation %d", mode), op))
	return out
}

// float computes a virtual float laid out like its first input.
func (b *builder) float(mode int32, in ...dnnTensor) dnnTensor {
	return b.pointwise(mode, dnnFloat, 0, b.tensor(dnnFloat, in[0].sizes, in[0].strides, 0, false), in...)
}

func (b *builder) reduce(how int32, x, out dnnTensor) dnnTensor {
	r := b.desc(descReduce)
	set(b, r, 1601, attrDataType, int32(dnnFloat))
	set(b, r, 1600, attrReduce, how)
	b.finalize("reduction", r)
	op := b.desc(descReduceOp)
	set(b, op, 1612, attrDesc, r)
	set(b, op, 1610, attrDesc, x.desc)
	set(b, op, 1611, attrDesc, out.desc)
	b.ops = append(b.ops, b.finalize("reduction operation", op))
	return out
}

func (b *builder) reshape(x, out dnnTensor) dnnTensor {
	op := b.desc(descReshape)
	set(b, op, 2200, attrDesc, x.desc)
	set(b, op, 2201, attrDesc, out.desc)
	b.ops = append(b.ops, b.finalize("reshape", op))
	return out
}

// plan asks heuristic mode A for engines and takes the first whose plan can be made.
func (b *builder) plan() (*dnnPlan, error) {
	graph := b.desc(descGraph)
	set(b, graph, 801, attrDesc, b.ops...)
	set(b, graph, 800, attrHandle, b.handle)
	b.finalize("graph", graph)
	const modeA = 3
	asked := b.desc(descHeuristics)
	set(b, asked, 201, attrDesc, graph)
	set(b, asked, 200, attrHeuristic, int32(modeA))
	b.finalize("heuristics", asked)
	configs := make([]uintptr, get(b, asked, 202, attrDesc, []uintptr(nil)))
	if b.err != nil {
		return nil, &dnnRefused{b.err.Error()}
	}
	for i := range configs {
		configs[i] = b.desc(descEngineConfig)
	}
	configs = configs[:get(b, asked, 202, attrDesc, configs)]
	last := b.err
	for _, c := range configs {
		b.err = nil
		p := b.desc(descPlan)
		set(b, p, 400, attrHandle, b.handle)
		set(b, p, 401, attrDesc, c)
		b.finalize("plan", p)
		workspace := make([]int64, 1)
		get(b, p, 402, attrInt64, workspace)
		if last = b.err; last == nil {
			return &dnnPlan{p, int(workspace[0]), b.constants}, nil
		}
	}
	return nil, &dnnRefused{fmt.Sprintf("of %d engines the last says: %v", len(configs), last)}
}

// bindPlan ties a plan to the addresses of its tensors, by id. The pack is made once and used at every execution.
func (e *Engine) bindPlan(p *dnnPlan, what string, tensors map[int64]Ptr) (Work, error) {
	d := e.dnn
	b := d.builder()
	var ids []int64
	var addrs []uintptr
	for id, ptr := range tensors {
		ids, addrs = append(ids, id), append(addrs, uintptr(ptr))
	}
	for id, addr := range p.constants {
		ids, addrs = append(ids, id), append(addrs, addr)
	}
	pack := b.desc(descPack)
	set(b, pack, 1001, attrAddress, addrs...)
	set(b, pack, 1000, attrInt64, ids...)
	if p.workspace > 0 {
		room, err := e.scratchFor(p.workspace)
		if err != nil {
			return nil, err
		}
		set(b, pack, 1003, attrAddress, uintptr(room))
	}
	b.finalize("variant pack", pack)
	return func() error { return d.check(what, call(d.execute, d.handle, p.plan, pack)) }, b.err
}
