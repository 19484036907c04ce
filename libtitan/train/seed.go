package train

import (
	"encoding/binary"
	"math"
	"slices"
	"sync"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/nn"
	"titan/libtitan/rng"
)

// The sources of a seed checkpoint's random numbers.
const (
	Philox = "philox" // a value depends on the seed, the parameter's name and the element's index alone
	Torch  = "torch"  // PyTorch's CPU generator, drawn in the order of the parameters
)

// SeedState is the checkpoint that params start from: each parameter by its Init, drawn in float32 and rounded to
// dt (float32 or bfloat16), cut along its first dimension over the given number of files. Nothing is made before
// it is asked for, and any range can be asked for alone.
//
// The file cut is torch.chunk's: n rows over k files give ceil(n/k) rows each until they run out.
func SeedState(params []*nn.Param, seed uint64, rngKind string, dt dtype.DType, files int) (checkpoint.State, error) {
	if dt != dtype.Float32 && dt != dtype.BFloat16 {
		return checkpoint.State{}, exit.Usage.Errorf("seed checkpoint: dtype %s: want float32 or bfloat16", dt)
	}
	if files < 1 {
		return checkpoint.State{}, exit.Usage.Errorf("seed checkpoint: %d files: want at least 1", files)
	}
	values, err := initials(params, seed, rngKind)
	if err != nil {
		return checkpoint.State{}, err
	}
	var s checkpoint.State
	for i, p := range params {
		s.Tensors = append(s.Tensors, checkpoint.Tensor{
			FQN:    p.FQN,
			DType:  dt,
			Shape:  p.Shape,
			Chunks: rowChunks(p.Shape, files, encoder{values[i], dt}),
		})
	}
	return s, nil
}

// Initial is what p starts from under Philox: no file is needed where every rank makes its own slice.
func Initial(p *nn.Param, seed uint64) rng.Fill {
	switch p.Init.Kind {
	case nn.Normal:
		return func(dst []float32, start int64) { rng.FillNormal(dst, seed, p.FQN, start, p.Init.Std) }
	case nn.TruncNormal:
		return func(dst []float32, start int64) {
			rng.FillTruncNormal(dst, seed, p.FQN, start, p.Init.Std, p.Init.Cut)
		}
	default:
		return ones
	}
}

func ones(dst []float32, _ int64) {
	for i := range dst {
		dst[i] = 1
	}
}

func initials(params []*nn.Param, seed uint64, rngKind string) ([]rng.Fill, error) {
	fills := make([]rng.Fill, len(params))
	switch rngKind {
	case Philox:
		for i, p := range params {
			fills[i] = Initial(p, seed)
		}
	case Torch:
		s := rng.NewSequence(seed)
		for i, p := range params {
			fills[i] = drawn(s, p)
		}
	default:
		return nil, exit.Usage.Errorf("seed checkpoint: rng %q: want %s or %s", rngKind, Philox, Torch)
	}
	return fills, nil
}

// drawn takes p's draws from s, as torchtitan v0.2.2's init_weights does: ones draw nothing.
func drawn(s *rng.Sequence, p *nn.Param) rng.Fill {
	switch n, i := p.NumElements(), p.Init; i.Kind {
	case nn.Normal:
		return s.Normal(n, 0, i.Std)
	case nn.TruncNormal:
		return s.TruncNormal(n, 0, i.Std, -i.Cut, i.Cut)
	default:
		return ones
	}
}

// rowChunks cuts a tensor along its first dimension, one chunk a file.
func rowChunks(shape []int64, files int, e encoder) []checkpoint.Chunk {
	if len(shape) == 0 || shape[0] == 0 {
		return checkpoint.Whole(shape, func(dst []byte, off int64) error { return e.fill(dst, off, 0) })
	}
	rows, rowSize := (shape[0]+int64(files)-1)/int64(files), int64(1)
	for _, d := range shape[1:] {
		rowSize *= d
	}
	var chunks []checkpoint.Chunk
	for first := int64(0); first < shape[0]; first += rows {
		c := checkpoint.Chunk{
			Offsets: make([]int64, len(shape)),
			Sizes:   slices.Clone(shape),
			File:    len(chunks),
			Fill:    func(dst []byte, off int64) error { return e.fill(dst, off, first*rowSize) },
		}
		c.Offsets[0], c.Sizes[0] = first, min(rows, shape[0]-first)
		chunks = append(chunks, c)
	}
	return chunks
}

// encoder turns a tensor's values into bytes of a dtype.
type encoder struct {
	values rng.Fill
	dt     dtype.DType
}

// piece is the number of values made at once: 256 KiB, small beside a core's cache, and long enough that
// looking up a place in torch's sequence costs little.
const piece = 1 << 16

var scratch = sync.Pool{New: func() any { return new([piece]float32) }}

// fill writes the bytes at off of a chunk whose first value is element first of the tensor.
func (e encoder) fill(dst []byte, off, first int64) error {
	buf := scratch.Get().(*[piece]float32)
	defer scratch.Put(buf)
	size := e.dt.Size()
	for start := first + off/int64(size); len(dst) > 0; start += piece {
		v := buf[:min(piece, len(dst)/size)]
		e.values(v, start)
		e.encode(dst, v)
		dst = dst[len(v)*size:]
	}
	return nil
}

func (e encoder) encode(dst []byte, values []float32) {
	if e.dt == dtype.BFloat16 {
		for i, v := range values {
			binary.LittleEndian.PutUint16(dst[2*i:], dtype.BF16(v))
		}
		return
	}
	for i, v := range values {
		binary.LittleEndian.PutUint32(dst[4*i:], math.Float32bits(v))
	}
}
