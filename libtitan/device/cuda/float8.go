package cuda

import (
	_ "embed"
	"fmt"

	"titan/libtitan/dtype"
)

//go:embed float8.cu
var float8Source string

// Scaling is which elements of a matrix share a scale.
type Scaling uint8

// The scalings.
const (
	PerTensor Scaling = iota
	PerRow
	PerColumn
)

// A block's tile has float8High rows and as many columns, where it casts float8Wide: with 128, both copies of 2048 columns of weights took
// 31.6 us on an H200, with 64 28.6. Products want both sizes of a matrix to be multiples of float8Multiple.
const (
	float8High     = 128
	float8Wide     = 64
	float8Multiple = 16
)

// float8Kernel compiles one kernel of float8.cu, when something first wants it.
func (e *Engine) float8Kernel(name string) (string, error) {
	return name, e.need(source{"float8.cu", float8Source, []string{name}})
}

// Amax writes the largest magnitudes of x [rows, width] of t to out, float32: one, one a row or one a column. A NaN is larger than
// all. They are the same in every run: the largest does not depend on an order.
func (e *Engine) Amax(t dtype.DType, out, x Ptr, rows, width int, per Scaling) (Work, error) {
	n := lanes(t, width)
	name, err := e.float8Kernel(fmt.Sprintf("%s<%s, %d>", [...]string{"amax_tensor", "amax_rows", "amax_columns"}[per], cname(t), n))
	if err != nil {
		return nil, err
	}
	switch per {
	case PerRow:
		return e.bind(name, grid{x: blocksOf(rows, maxThreads/32), threads: maxThreads}, pack(x, out, rows, width))
	case PerColumn:
		w, err := e.bind(name, grid{x: blocksOf(width, 32*n), y: blocksOf(rows, float8High), threads: 32, rows: 8}, pack(x, out, rows, width))
		return sequence(func() error { return e.Stream.Zero(out, 4*width) }, w), err
	}
	state, err := e.zeros()
	if err != nil {
		return nil, err
	}
	blocks := min(8*e.SMs, max(1, blocksOf(rows*width, 4*n*maxThreads)))
	return e.bind(name, grid{x: blocks, threads: maxThreads}, pack(x, out, rows*width, state))
}

// Float8 is a matrix as a cast makes it.
type Float8 struct {
	Type    dtype.DType // e4m3 or e5m2
	Q       Ptr         // as what was cast; 0: not made
	Turned  Ptr         // its columns as rows; 0: not made
	Inverse Ptr         // the reciprocals of the scales, float32: one, one a row or one a column
	Per     Scaling
}

func float8Name(t dtype.DType) string {
	if t == dtype.Float8E5M2 {
		return "e5m2"
	}
	return "e4m3"
}

// Float8Cast fills m from x [rows, width] of t by its largest magnitudes, with the bits of the host (dtype.Float8Scale). width is a
// multiple of 16, rows too where columns become rows.
func (e *Engine) Float8Cast(m Float8, t dtype.DType, x, amax Ptr, rows, width int, power2 bool) (Work, error) {
	if width%float8Multiple != 0 || m.Turned != 0 && rows%float8Multiple != 0 {
		return nil, fmt.Errorf("cuda: float8 of [%d, %d]: both have to be multiples of %d: choose sequence length and batch so", rows, width, float8Multiple)
	}
	name, err := e.float8Kernel(fmt.Sprintf("float8_cast<%s, %s, %d, %d>", cname(t), float8Name(m.Type), m.Per, float8Wide))
	if err != nil {
		return nil, err
	}
	return e.bind(name, float8Grid(rows, width, float8Wide), pack(x, amax, m.Q, m.Turned, m.Inverse, rows, width, power2))
}

func float8Grid(rows, width, wide int) grid {
	g := grid{x: blocksOf(width, wide), y: blocksOf(rows, float8High), threads: maxThreads}
	if g.y == 0 {
		g.x = 0
	}
	return g
}

// Float8Turn writes the columns of x [rows, width], bytes, as rows of y; both are multiples of 16.
func (e *Engine) Float8Turn(y, x Ptr, rows, width int) (Work, error) {
	if width%float8Multiple != 0 || rows%float8Multiple != 0 {
		return nil, fmt.Errorf("cuda: turn float8 [%d, %d]: both have to be multiples of %d", rows, width, float8Multiple)
	}
	name, err := e.float8Kernel("float8_turn")
	if err != nil {
		return nil, err
	}
	return e.bind(name, float8Grid(rows, width, float8High), pack(x, y, rows, width))
}

// zeros are words that kernels find zero and leave zero.
func (e *Engine) zeros() (Ptr, error) {
	const bytes = 256
	if e.zeroed != 0 {
		return e.zeroed, nil
	}
	p, err := e.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	e.rooms, e.zeroed = append(e.rooms, p), p
	return p, e.Upload(p, make([]byte, bytes))
}
