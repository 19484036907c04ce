package cuda

import (
	_ "embed"
	"math"
	"slices"
	"unsafe"
)

//go:embed optim.cu
var optimSource string

func optimKernels() source {
	return source{"optim.cu", optimSource, []string{"adamw", "squares", "sum_parts", "tell", "clip"}}
}

// Chunks of a tensor that one block works on, in elements; optim.cu has the same numbers.
const (
	updateChunk  = 2048
	squaresChunk = 32768
)

// Param is what the optimizer keeps of a parameter: N each of values, gradient and moments, float32 but for a gradient that is
// bfloat16; the values in bfloat16, where a copy is kept (else 0), and their largest magnitude, as Amax has it, where that is (else 0).
// Of a table whose gradient has some rows alone, Rows are where those lie, as EmbeddingBackwardRows leaves them, else 0.
type Param struct {
	P, G, M, V, Copy, Largest, Rows Ptr
	Dim                             int // of a row, a multiple of 4 where there are Rows
	N                               int
	NarrowG                         bool
	Early                           bool // its gradient is there before others are: Begin takes it
}

// AdamW is one step's settings (Loshchilov and Hutter, 2019). C1 and C2 are the bias corrections 1-Beta1^t and
// 1-Beta2^t. Gradients are scaled first, so that their global norm does not exceed MaxNorm.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	C1, C2                             float64
	MaxNorm                            float64
}

// Tally is what the ranks of a job add up in a step.
type Tally struct {
	Where     []int // of each parameter, its place among the model's; -1: another rank counts it
	NumParams int   // of the model
	Losses    Ptr   // float32
	NumLosses int   // 0: other ranks' count
}

// Which is one of the tensors of a Param.
type Which int

// The tensors of a Param.
const (
	Values Which = iota
	Gradients
	FirstMoments
	SecondMoments
)

// Optimizer updates a set of parameters, each part in one launch: Begin, if gradients are Early, Measure, then, among ranks, the sum
// of Told, then Clip, then Update. All may be recorded; what changes from step to step is Set before it begins.
type Optimizer struct {
	Begin   Work   // what of the tally Early gradients allow
	Measure Work   // the tally of this rank
	Clip    Work   // the factor of the gradients from the tally, which goes to the host; Update follows
	Update  Work   // AdamW, unless the tally is not finite
	Clipped *Event // the host has the tally

	e                     *Engine
	numTensors, numParams int
	tables, scalars, told Ptr
	staged                *Host   // scalars, then the tally, then sums
	squares               [4]Work // by Which
	sums                  Ptr
}

// chunk is one block's share of a tensor.
type chunk struct{ tensor, index int32 }

// chunksOf cuts every parameter into pieces of size elements, and tells where those of each begin.
func chunksOf(params []Param, size int) (chunks []chunk, first []int64) {
	for i, p := range params {
		first = append(first, int64(len(chunks)))
		for c := range blocksOf(p.N, size) {
			chunks = append(chunks, chunk{int32(i), int32(c)})
		}
	}
	return chunks, append(first, int64(len(chunks)))
}

// earlyFirst puts the chunks of Early gradients first, and tells how many there are.
func earlyFirst(chunks []chunk, params []Param) int {
	early := func(c chunk) bool { return params[c.tensor].Early }
	late := slices.DeleteFunc(slices.Clone(chunks), early)
	kept := slices.DeleteFunc(chunks, func(c chunk) bool { return !early(c) })
	copy(chunks[len(kept):], late)
	return len(kept)
}

// bytesOf is the memory of x.
func bytesOf[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

// scalarBytes is the size of optim.cu's scalars, of which the host gives those from the third on.
const scalarBytes = 16 + 8*4

// NewOptimizer binds the update of params to their memory.
func (e *Engine) NewOptimizer(params []Param, t Tally) (*Optimizer, error) {
	o := &Optimizer{e: e, numTensors: len(params), numParams: t.NumParams}
	updates, _ := chunksOf(params, updateChunk)
	sums, first := chunksOf(params, squaresChunk)
	early := earlyFirst(sums, params)
	at, err := o.place(bytesOf(params), bytesOf(updates), bytesOf(sums), bytesOf(first), bytesOf(t.Where),
		make([]byte, scalarBytes), make([]byte, 8*len(sums)), make([]byte, 8*len(params)), make([]byte, 8*(t.NumParams+1)))
	if err != nil {
		return nil, err
	}
	tensors, chunks, begin, where, partials := at[0], at[2], at[3], at[4], at[6]
	o.scalars, o.sums, o.told = at[5], at[7], at[8]
	if o.staged, err = e.AllocHost(scalarBytes + 8*(t.NumParams+1) + 8*len(params)); err != nil {
		return nil, err
	}
	if o.Clipped, err = e.NewEvent(false); err != nil {
		return nil, err
	}
	b := binder{e: e}
	squares := func(which Which, from, to int) Work { // of some of the chunks
		return b.bind("squares", grid{x: to - from, threads: 256}, tensors, chunks+Ptr(from*int(unsafe.Sizeof(chunk{}))), begin, partials, int(which))
	}
	add := b.bind("sum_parts", grid{x: len(params), threads: 256}, partials, begin, o.sums)
	for which := range o.squares {
		o.squares[which] = sequence(squares(Which(which), 0, len(sums)), add)
	}
	o.Begin = squares(Gradients, 0, early)
	o.Measure = sequence(squares(Gradients, early, len(sums)), add,
		b.bind("tell", grid{x: 1, threads: 256}, o.sums, where, len(params), t.Losses, t.NumLosses, o.told, t.NumParams))
	o.Clip = sequence(
		func() error { return e.Stream.Upload(o.scalars, o.staged, 0, scalarBytes) },
		b.bind("clip", grid{x: 1, threads: 256}, o.told, t.NumParams, o.scalars, tensors, len(params)),
		func() error { return e.Stream.Download(o.staged, scalarBytes, o.told, 8*(t.NumParams+1)) },
		func() error { return e.Stream.Signal(o.Clipped) })
	o.Update = b.bind("adamw", grid{x: len(updates), threads: 256}, tensors, at[1], o.scalars)
	return o, b.err
}

// binder binds kernels and keeps the first error.
type binder struct {
	e   *Engine
	err error
}

func (b *binder) bind(kernel string, g grid, params ...any) Work {
	w, err := b.e.bind(kernel, g, pack(params...))
	if b.err == nil {
		b.err = err
	}
	return w
}

// place puts tables on the device.
func (o *Optimizer) place(tables ...[]byte) (at []Ptr, err error) {
	room := 0
	for _, t := range tables {
		room += roundUp(len(t), 256)
	}
	if o.tables, err = o.e.Alloc(room); err != nil {
		return nil, err
	}
	next := o.tables
	for _, t := range tables {
		at = append(at, next)
		if err := o.e.Upload(next, t); err != nil {
			return nil, err
		}
		next += Ptr(roundUp(len(t), 256))
	}
	return at, nil
}

// Close gives the tables back.
func (o *Optimizer) Close() error {
	if err := o.e.Free(o.tables); err != nil {
		return err
	}
	if err := o.Clipped.Close(); err != nil {
		return err
	}
	return o.staged.Free()
}

// Set gives the settings of the step that begins next. Those of the one before have been read when its tally has come.
func (o *Optimizer) Set(s AdamW) {
	HostOf[float64](o.staged, 8, 1)[0] = s.MaxNorm
	copy(HostOf[float32](o.staged, 16, 7), []float32{
		float32(1 - s.LR*s.WeightDecay), float32(1 - s.Beta1), float32(s.Beta2), float32(1 - s.Beta2),
		float32(math.Sqrt(s.C2)), float32(s.Eps), float32(-s.LR / s.C1),
	})
}

// Told is the tally on the device, float64: the sums of squares of the model's parameters, and the sum of the losses.
func (o *Optimizer) Told() Span { return Span{o.told, 8 * (o.numParams + 1)} }

// Tally is the tally, once it is Clipped.
func (o *Optimizer) Tally() []float64 {
	return append([]float64(nil), HostOf[float64](o.staged, scalarBytes, o.numParams+1)...)
}

// Squares waits for the stream and gives the sum of squares of each parameter's values, gradient or moments, in float64.
func (o *Optimizer) Squares(which Which) ([]float64, error) {
	if o.numTensors == 0 {
		return nil, nil
	}
	if err := o.squares[which](); err != nil {
		return nil, err
	}
	at := scalarBytes + 8*(o.numParams+1)
	if err := o.e.Stream.Download(o.staged, at, o.sums, 8*o.numTensors); err != nil {
		return nil, err
	}
	if err := o.e.Stream.Sync(); err != nil {
		return nil, err
	}
	return append([]float64(nil), HostOf[float64](o.staged, at, o.numTensors)...), nil
}
