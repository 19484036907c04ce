// Package cpu holds the kernels that run a plan on the host: matrix products, fused causal attention,
// the row operations of a transformer, their backward forms and AdamW.
//
// Kernels are functions over slices: no shapes beyond their integer arguments, no graph types. Matrices
// are row-major. float32 kernels have the plain name; the bfloat16 ones (elements as uint16) end in BF16,
// compute in float32 and round once at the end.
//
// Results are reproducible: work is cut into chunks that depend on the shape alone and partial sums are
// added in a fixed order, so the bits do not change with the number of threads. Matrix products have the same
// bits under every instruction set too; other kernels agree between instruction sets to rounding. In float32 an op has the
// same bits in a fused program as by itself.
//
// Start from [New]. An [Engine] may be used by several goroutines at once.
package cpu

import (
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
)

// Options choose how an [Engine] computes. The zero value is good.
type Options struct {
	Threads  int    // goroutines a kernel may use; 0 means GOMAXPROCS
	Products string // who multiplies matrices: "builtin" (or ""), or "onednn" (libdnnl.so.2 from the system)
}

// Engine runs kernels on the host's cores. Make one with [New].
type Engine struct {
	threads int
	k       *kernels
	dnnl    *dnnl // nil: the built-in products
	arenas  arenas
}

// New makes an Engine for this machine's instruction set. It fails when Options name an unknown
// product engine or one that cannot be loaded.
func New(o Options) (*Engine, error) {
	e := &Engine{threads: o.Threads, k: bestKernels()}
	if o.Threads < 0 {
		return nil, fmt.Errorf("cpu engine: threads %d: want 0 (all cores) or more", o.Threads)
	}
	if e.threads == 0 {
		e.threads = runtime.GOMAXPROCS(0)
	}
	switch o.Products {
	case "", "builtin":
	case "onednn":
		d, err := loadDNNL(e.threads)
		if err != nil {
			return nil, err
		}
		e.dnnl = d
	default:
		return nil, fmt.Errorf("cpu engine: products %q: want builtin or onednn", o.Products)
	}
	return e, nil
}

// Name says which instruction set and product engine are in use: "avx2", "avx512+onednn".
func (e *Engine) Name() string {
	if e.dnnl != nil {
		return e.k.name + "+onednn"
	}
	return e.k.name
}

// For calls f over [0,n) in chunks of grain (the last may be shorter), on up to Threads goroutines, and returns when all
// are done. Chunk boundaries depend on n and grain alone. Which goroutine runs a chunk, and in which order, varies:
// f must write to places that no other chunk touches. A single chunk runs in the caller.
func (e *Engine) For(n, grain int, f func(lo, hi int)) {
	chunks := (n + grain - 1) / grain
	var next atomic.Int64
	work := func() {
		for {
			c := int(next.Add(1)) - 1
			if c >= chunks {
				return
			}
			f(c*grain, min(n, (c+1)*grain))
		}
	}
	var wg sync.WaitGroup
	for range min(e.threads, chunks) - 1 {
		wg.Go(work)
	}
	work()
	wg.Wait()
}

// arena is scratch memory that a kernel borrows and cuts into slices; its contents start undefined.
type arena struct{ buf, rest []float32 }

// arenas keeps what was given back, by its number of floats, a few sizes to each power of two. It is no sync.Pool because
// that forgets at each collection, and fresh megabytes cost more in page faults than the kernels that use them.
type arenas struct {
	mu   sync.Mutex
	free map[int][]*arena
}

// borrow takes an arena with room for total floats, plus 16 for each of the slices cut from it.
func (e *Engine) borrow(total, slices int) *arena {
	size := total + 16*slices
	size = roundUp(size, 1<<max(0, bits.Len(uint(size))-3))
	e.arenas.mu.Lock()
	defer e.arenas.mu.Unlock()
	free := e.arenas.free[size]
	if len(free) == 0 {
		return newArena(make([]float32, size))
	}
	last := len(free) - 1
	e.arenas.free[size] = free[:last]
	return newArena(free[last].buf)
}

func newArena(buf []float32) *arena { return &arena{buf, buf} }

func (e *Engine) giveBack(a *arena) {
	e.arenas.mu.Lock()
	defer e.arenas.mu.Unlock()
	if e.arenas.free == nil {
		e.arenas.free = map[int][]*arena{}
	}
	e.arenas.free[len(a.buf)] = append(e.arenas.free[len(a.buf)], a)
}

// take cuts the next n floats; slices start on cache lines when the arena does.
func (a *arena) take(n int) []float32 {
	s := a.rest[:n:n]
	a.rest = a.rest[min((n+15)&^15, len(a.rest)):]
	return s
}

// zeros cuts the next n floats, cleared.
func (a *arena) zeros(n int) []float32 {
	s := a.take(n)
	clear(s)
	return s
}

// roundUp is the smallest multiple of m that is not below n.
func roundUp(n, m int) int { return (n + m - 1) / m * m }
