package cuda

import (
	_ "embed"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/dtype"
)

//go:embed common.cuh
var commonHeader string

// Work is something bound to memory: each call puts it on the engine's stream once more.
type Work func() error

// Options choose how an Engine works.
type Options struct {
	Deterministic bool // the same bits in every run, also where another form is faster
}

// Engine computes on one stream of a device. It is used by one goroutine at a time.
type Engine struct {
	*Device
	Options
	Stream  *Stream
	rtc     *nvrtc
	mu      sync.Mutex
	kernels map[string]uintptr // CUfunction by name expression
	spent   Compiled
	args    launchArgs
	scratch Ptr // the newest of
	rooms   []Ptr
	zeroed  Ptr // words that kernels leave zero
	room    int // bytes of scratch
	blas    *blas
	dnn     *dnn
}

// NewEngine loads the libraries that kernels and products need and compiles the kernels that every model uses.
func NewEngine(d *Device, s *Stream, o Options) (*Engine, error) {
	e := &Engine{Device: d, Options: o, Stream: s, kernels: map[string]uintptr{}}
	var err error
	if e.rtc, err = openNVRTC(d.find); err != nil {
		return nil, err
	}
	if e.args, err = newLaunchArgs(d); err != nil {
		return nil, err
	}
	if e.blas, err = newBlas(e); err != nil {
		return nil, err
	}
	return e, e.compile(common(e.clusters()))
}

// Close gives the engine's own memory back; what was bound with it can no longer be done.
func (e *Engine) Close() error {
	leave, err := e.Enter()
	if err != nil {
		return err
	}
	defer leave()
	for _, p := range append(e.rooms, e.blas.workspace) {
		if err := e.Free(p); err != nil {
			return err
		}
	}
	hosts := []*Host{e.args.host, e.blas.factors}
	if e.dnn != nil {
		hosts = append(hosts, e.dnn.constants)
	}
	for _, h := range hosts {
		if err := h.Free(); err != nil {
			return err
		}
	}
	return e.Stream.Close()
}

// compile makes the kernels of sources available, each source in its own goroutine.
func (e *Engine) compile(sources []source) error {
	var g errgroup.Group
	for _, src := range sources {
		g.Go(func() error {
			leave, err := e.Enter()
			if err != nil {
				return err
			}
			defer leave()
			began := time.Now()
			o, err := e.rtc.compileFor(fmt.Sprintf("sm_%d%d", e.Major, e.Minor), src)
			if err != nil {
				return err
			}
			if err := e.loadObject(src, o); err != nil {
				return err
			}
			e.mu.Lock()
			e.spent.add(src, time.Since(began))
			e.mu.Unlock()
			return nil
		})
	}
	return g.Wait()
}

// Compiled is what an engine has compiled so far.
type Compiled struct {
	Sources, Kernels int
	Spent            time.Duration // on all together: sources are compiled beside each other
	Slowest          string        // file
	Longest          time.Duration // of the slowest
}

func (c *Compiled) add(src source, took time.Duration) {
	c.Sources, c.Kernels, c.Spent = c.Sources+1, c.Kernels+len(src.kernels), c.Spent+took
	if took > c.Longest {
		c.Slowest, c.Longest = src.file, took
	}
}

// Compiled is what was compiled so far.
func (e *Engine) Compiled() Compiled {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.spent
}

// need compiles those kernels of src that are not there yet.
func (e *Engine) need(src source) error {
	var missing []string
	for _, k := range src.kernels {
		if e.kernels[k] == 0 {
			missing = append(missing, k)
		}
	}
	if missing == nil {
		return nil
	}
	src.kernels = missing
	return e.compile([]source{src})
}

func (e *Engine) loadObject(src source, o *object) error {
	var mod uintptr
	if err := e.drv.check("cuModuleLoadData of "+src.file, call(e.drv.cuModuleLoadData, uintptr(ref(&mod)), uintptr(ref(&o.cubin[0])))); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, k := range src.kernels {
		var fn uintptr
		if err := e.drv.check("cuModuleGetFunction "+k, call(e.drv.cuModuleGetFunction, uintptr(ref(&fn)), mod, uintptr(ref(cstring(o.lowered[k]))))); err != nil {
			return err
		}
		e.kernels[k] = fn
	}
	return nil
}

// scratchFor is at least bytes of memory that one Work may use while it runs. Works follow each other on the stream,
// so all use the same; when it grows, the old stays for those that were bound to it.
func (e *Engine) scratchFor(bytes int) (Ptr, error) {
	if bytes <= e.room {
		return e.scratch, nil
	}
	bytes = max(bytes, 64<<20)
	p, err := e.Alloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("scratch: %w", err)
	}
	e.rooms, e.scratch, e.room = append(e.rooms, p), p, bytes
	return p, nil
}

// cname is how kernels call an element type.
func cname(t dtype.DType) string {
	if t == dtype.BFloat16 {
		return "bf16"
	}
	return "float"
}

// lanes is how many elements of t a thread moves at once in rows of width elements: 16 bytes where the rows keep to
// that, else one.
func lanes(t dtype.DType, width int) int {
	if n := 16 / t.Size(); width%n == 0 {
		return n
	}
	return 1
}
