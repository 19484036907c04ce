package cuda

import (
	_ "embed"
	"fmt"

	"titan/libtitan/dtype"
)

//go:embed rmsnorm.cu
var rmsNormSource string

// Row kernels keep a row in the registers of a block: up to maxVectors vectors in each of up to maxThreads threads.
const (
	maxThreads = 256
	maxVectors = 8
)

// rowShape is how a row of dim elements is spread over a block.
type rowShape struct {
	t              dtype.DType
	lanes, vectors int // elements a vector, vectors a thread
	threads        int // that have a row
	rows           int // that a block has
}

func rowsOf(t dtype.DType, dim int) (rowShape, error) {
	r := rowShape{t: t, lanes: lanes(t, dim)}
	for r.vectors = 1; r.vectors <= maxVectors; r.vectors *= 2 {
		most := min(maxThreads, 128*r.vectors) // two vectors a thread keep more of the memory busy
		if r.threads = max(roundUp(blocksOf(dim/r.lanes, r.vectors), 32), 32); r.threads <= most {
			if r.rows = 1; r.threads == 32 {
				r.rows = maxThreads / 32
			}
			return r, nil
		}
	}
	return r, fmt.Errorf("cuda: rmsnorm over %d elements of %v: at most %d", dim, t, r.lanes*maxVectors*maxThreads)
}

func (r rowShape) name(kernel string) string {
	return fmt.Sprintf("%s<%s, %d, %d>", kernel, cname(r.t), r.lanes, r.vectors)
}

// kernels are compiled when a shape wants them.
func (r rowShape) kernels() source {
	return source{"rmsnorm.cu", rmsNormSource, []string{r.name("rmsnorm"), r.name("rmsnorm_backward"), "column_sums"}}
}

func (e *Engine) rowShapeFor(t dtype.DType, dim int) (rowShape, error) {
	r, err := rowsOf(t, dim)
	if err != nil {
		return r, err
	}
	return r, e.need(r.kernels())
}

// RMSNorm computes y = x·rstd·w row by row, rstd = 1/√(mean(x²)+eps) (Zhang and Sennrich, 2019).
// x and y are [rows, dim], w [dim], all of t; rstd is float32 [rows].
func (e *Engine) RMSNorm(t dtype.DType, y, rstd, x, w Ptr, rows, dim int, eps float32) (Work, error) {
	r, err := e.rowShapeFor(t, dim)
	if err != nil {
		return nil, err
	}
	return e.bind(r.name("rmsnorm"), grid{x: blocksOf(rows, r.rows), threads: r.threads, rows: r.rows}, pack(x, w, y, rstd, rows, dim, eps))
}

// RMSNormBackward writes dx [rows, dim] of t, and to dw [dim], float32, the sum over rows; it adds that to what dw holds
// if add is set.
func (e *Engine) RMSNormBackward(t dtype.DType, dx, dw, dy, x, w, rstd Ptr, rows, dim int, add bool) (Work, error) {
	r, err := e.rowShapeFor(t, dim)
	if err != nil {
		return nil, err
	}
	blocks := e.SMs * maxThreads / (r.threads * r.rows) // as many as run at once, by the registers that they need
	if r.vectors <= 2 {
		blocks *= 3
	}
	blocks = min(blocks, blocksOf(rows, r.rows))
	part, err := e.scratchFor(4 * blocks * dim)
	if err != nil {
		return nil, err
	}
	main, err := e.bind(r.name("rmsnorm_backward"), grid{x: blocks, threads: r.threads, rows: r.rows}, pack(dy, x, w, rstd, dx, part, rows, dim))
	if err != nil {
		return nil, err
	}
	sums, err := e.bind("column_sums", grid{x: blocksOf(dim, 32), threads: 32, rows: 8}, pack(part, dw, blocks, dim, add))
	return sequence(main, sums), err
}

func roundUp(n, m int) int { return blocksOf(n, m) * m }
