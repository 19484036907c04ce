package cuda

import (
	_ "embed"
	"math"
	"unsafe"
)

//go:embed optim.cu
var optimSource string

func optimKernels() source {
	return source{"optim.cu", optimSource, []string{"adamw", "squares", "sum_parts"}}
}

// Chunks of a tensor that one block works on, in elements; optim.cu has the same numbers.
const (
	updateChunk  = 2048
	squaresChunk = 32768
)

// Param is what the optimizer keeps of a parameter: N float32 each of values, gradient and moments.
type Param struct {
	P, G, M, V Ptr
	N          int
}

// AdamW is one step's settings (Loshchilov and Hutter, 2019). C1 and C2 are the bias corrections 1-Beta1^t and
// 1-Beta2^t; GradScale multiplies the gradient first.
type AdamW struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	C1, C2                             float64
	GradScale                          float64
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

// Optimizer updates a set of parameters, each in one launch.
type Optimizer struct {
	e               *Engine
	numTensors      int
	tables, scalars Ptr
	staged          *Host // for scalars, then for sums
	update          Work
	squares         [4]Work // by Which
	sums            Ptr
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

// bytesOf is the memory of x.
func bytesOf[T any](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*int(unsafe.Sizeof(*new(T))))
}

const scalarBytes = 8 * 4

// NewOptimizer binds the update of params to their memory.
func (e *Engine) NewOptimizer(params []Param) (*Optimizer, error) {
	o := &Optimizer{e: e, numTensors: len(params)}
	updates, _ := chunksOf(params, updateChunk)
	sums, first := chunksOf(params, squaresChunk)
	parts := [][]byte{bytesOf(params), bytesOf(updates), bytesOf(sums), bytesOf(first)}
	room := 0
	for _, p := range parts {
		room += roundUp(len(p), 256)
	}
	scalars := room
	partials := scalars + 256
	results := partials + roundUp(8*len(sums), 256)
	var err error
	if o.tables, err = e.Alloc(results + 8*len(params)); err != nil {
		return nil, err
	}
	if o.staged, err = e.AllocHost(scalarBytes + 8*len(params)); err != nil {
		return nil, err
	}
	var at [4]Ptr
	next := o.tables
	for i, p := range parts {
		at[i] = next
		if err := e.Upload(next, p); err != nil {
			return nil, err
		}
		next += Ptr(roundUp(len(p), 256))
	}
	o.scalars, o.sums = o.tables+Ptr(scalars), o.tables+Ptr(results)
	if o.update, err = e.bind("adamw", grid{x: len(updates), threads: 256}, pack(at[0], at[1], o.scalars)); err != nil {
		return nil, err
	}
	for which := range o.squares {
		part, err := e.bind("squares", grid{x: len(sums), threads: 256}, pack(at[0], at[2], o.tables+Ptr(partials), which))
		if err != nil {
			return nil, err
		}
		sum, err := e.bind("sum_parts", grid{x: len(params), threads: 256}, pack(o.tables+Ptr(partials), at[3], o.sums))
		if err != nil {
			return nil, err
		}
		o.squares[which] = sequence(part, sum)
	}
	return o, nil
}

// Close gives the tables back.
func (o *Optimizer) Close() error {
	if err := o.e.Free(o.tables); err != nil {
		return err
	}
	return o.staged.Free()
}

// Update applies AdamW to all parameters, in torch.optim.AdamW's order of operations. The stream is waited for between
// two updates, as Squares does: the settings of the first have been read then.
func (o *Optimizer) Update(s AdamW) error {
	copy(HostOf[float32](o.staged, 0, 8), []float32{
		float32(s.GradScale), float32(1 - s.LR*s.WeightDecay), float32(1 - s.Beta1), float32(s.Beta2), float32(1 - s.Beta2),
		float32(math.Sqrt(s.C2)), float32(s.Eps), float32(-s.LR / s.C1),
	})
	if err := o.e.Stream.Upload(o.scalars, o.staged, 0, scalarBytes); err != nil {
		return err
	}
	return o.update()
}

// Squares waits for the stream and gives the sum of squares of each parameter's values, gradient or moments, in float64.
func (o *Optimizer) Squares(which Which) ([]float64, error) {
	if o.numTensors == 0 {
		return nil, nil
	}
	if err := o.squares[which](); err != nil {
		return nil, err
	}
	if err := o.e.Stream.Download(o.staged, scalarBytes, o.sums, 8*o.numTensors); err != nil {
		return nil, err
	}
	if err := o.e.Stream.Sync(); err != nil {
		return nil, err
	}
	return append([]float64(nil), HostOf[float64](o.staged, scalarBytes, o.numTensors)...), nil
}
