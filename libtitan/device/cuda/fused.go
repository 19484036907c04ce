package cuda

import (
	"fmt"

	"titan/libtitan/dtype"
	"titan/libtitan/scalar"
)

// fusedForm is how a generated kernel is spread over rows of dim elements.
type fusedForm struct {
	lanes, vectors int // elements a vector, vectors a thread
	threads, rows  int // of a block: threads of a row, rows
	perSM          int // blocks that run at once on a multiprocessor
}

// Rows are spread over up to fusedThreads threads: one vector a thread was the fastest of 1, 2 and 4 on rows of 2048 and of 4096
// elements. otherRegisters are those that a thread needs beside its values: with more blocks at once than that leaves room for,
// values spilled, and with fewer too little was under way (a sum and a norm on H200, 512 threads a row: 2, 3 and 4 blocks 2.9, 3.6 and
// 2.9 TB/s). A flat kernel that finds a largest magnitude has blocksPerSM blocks, which go on to other elements, so that few have to be
// joined: with 8 the last did not fill the device (SwiGLU's backward: 3.65 TB/s, with 32 4.04).
const (
	fusedThreads   = 512
	blocksPerSM    = 32
	registers      = 65536 // of a multiprocessor
	otherRegisters = 16
)

// formOf spreads whole rows: it keeps a row in the registers of a block of at most `most` threads, or more where the row is wider. A flat program has lanes alone.
func formOf(p *scalar.Program, dim, most int) (fusedForm, error) {
	f := fusedForm{lanes: fusedLanes(p, dim), vectors: 1}
	if p.Flat() {
		return f, nil
	}
	spread := func(limit int) bool {
		for f.vectors = 1; f.vectors <= maxVectors; f.vectors *= 2 {
			if f.threads = max(roundUp(blocksOf(dim/f.lanes, f.vectors), 32), 32); f.threads <= limit {
				return true
			}
		}
		return false
	}
	for limit := most; !spread(limit); limit *= 2 {
		if limit >= 1024 {
			return f, fmt.Errorf("cuda: a fused kernel on rows of %d elements: at most %d", dim, f.lanes*maxVectors*1024)
		}
	}
	if f.rows = 1; f.threads == 32 {
		f.rows = maxThreads / 32
	}
	g := &generator{p: p}
	g.schedule()
	f.perSM = min(max(registers/(f.threads*f.rows*(otherRegisters+f.lanes*f.vectors*g.live())), 1), 2048/(f.threads*f.rows))
	return f, nil
}

// source is p's kernel in the form f.
func (f fusedForm) source(p *scalar.Program) source {
	name := FusedName(p)
	kernel := fmt.Sprintf("%s<%d>", name, f.lanes)
	if !p.Flat() {
		kernel = fmt.Sprintf("%s<%d, %d, %d, %d>", name, f.lanes, f.vectors, f.threads*f.rows, f.perSM)
	}
	return source{name + ".cu", FusedSource(p), []string{kernel}}
}

// fusedLanes is how many elements a thread moves at once: 16 bytes of the narrowest type, if rows keep to that.
func fusedLanes(p *scalar.Program, dim int) int {
	n := 4
	if narrowPort(p.In, p.Out) {
		n = 8
	}
	for !p.Flat() && dim%n != 0 {
		n /= 2
	}
	return n
}

// FusedShape is a program on rows of Width elements.
type FusedShape struct {
	Program *scalar.Program
	Width   int
}

// CompileFused compiles the kernels of shapes beside each other; without it, each is when Fused first wants it.
func (e *Engine) CompileFused(shapes []FusedShape) error {
	var sources []source
	for _, s := range shapes {
		f, err := formOf(s.Program, s.Width, fusedThreads)
		if err != nil {
			return err
		}
		if src := f.source(s.Program); e.kernels[src.kernels[0]] == 0 {
			sources = append(sources, src)
		}
	}
	return e.compile(sources)
}

// Fused runs p on rows of width elements: its inputs and its results in their order. A result whose add is set is float32
// and is added to what is there.
func (e *Engine) Fused(p *scalar.Program, rows, width int, in, out []Ptr, add []bool) (Work, error) {
	f, err := formOf(p, width, fusedThreads)
	if err != nil {
		return nil, err
	}
	return e.fused(p, rows, width, in, out, add, f)
}

func (e *Engine) fused(p *scalar.Program, rows, width int, in, out []Ptr, add []bool, f fusedForm) (Work, error) {
	src, launch := f.source(p), flat(rows*width, f.lanes)
	sizes, parts, largest := []any{rows * width}, 0, len(p.Largest()) > 0
	if !p.Flat() {
		launch, sizes = grid{x: blocksOf(rows, f.rows), threads: f.threads, rows: f.rows}, []any{rows, width}
		if _, cols := p.Sums(); cols || largest {
			launch.x = min(launch.x, e.SMs*f.perSM)
			parts = launch.x * f.rows
		}
	}
	if largest {
		zeros, err := e.zeros()
		if err != nil {
			return nil, err
		}
		launch.x, sizes = min(launch.x, blocksPerSM*e.SMs), append(sizes, zeros)
	}
	if err := e.need(src); err != nil {
		return nil, err
	}
	written, after, err := e.added(p, rows, width, parts, out, add)
	if err != nil {
		return nil, err
	}
	w, err := e.bind(src.kernels[0], launch, pack(append([]any{in, written}, sizes...)...))
	if err != nil {
		return nil, err
	}
	return sequence(append([]Work{w}, after...)...), nil
}

// added gives a kernel scratch in place of the results that are more than what it writes, and the works that add it up:
// the parts of sums over rows, and whole values that are added to what is there.
func (e *Engine) added(p *scalar.Program, rows, width, parts int, out []Ptr, add []bool) (written []Ptr, after []Work, err error) {
	sizes, total := make([]int, len(out)), 0
	for i, o := range p.Out {
		switch {
		case o.Kind == scalar.Col:
			sizes[i] = gpuRound(4 * parts * width)
		case add[i]:
			sizes[i] = gpuRound(4 * rows * width)
		}
		total += sizes[i]
	}
	room, err := e.scratchFor(total)
	if err != nil {
		return nil, nil, err
	}
	for i, o := range p.Out {
		if sizes[i] == 0 {
			written = append(written, out[i])
			continue
		}
		var w Work
		if o.Kind == scalar.Col {
			if err := e.need(source{"rmsnorm.cu", rmsNormSource, []string{"column_sums"}}); err != nil {
				return nil, nil, err
			}
			w, err = e.bind("column_sums", grid{x: blocksOf(width, 32), threads: 32, rows: 8}, pack(room, out[i], parts, width, add[i]))
		} else {
			w, err = e.Add(dtype.Float32, out[i], rows*width, out[i], room)
		}
		if err != nil {
			return nil, nil, err
		}
		written, after, room = append(written, room), append(after, w), room+Ptr(sizes[i])
	}
	return written, after, nil
}

// gpuRound is n rounded to what allocations are aligned to.
func gpuRound(n int) int { return roundUp(n, 256) }
