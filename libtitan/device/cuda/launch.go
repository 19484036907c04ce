package cuda

import (
	"fmt"
	"math"
)

// launchArgs is a kernel's parameter list in C memory and the array that points at it. The driver copies the list
// during the launch, so one serves every launch of an engine.
type launchArgs struct {
	host  *Host
	extra uintptr
	size  []uint64
	list  []byte
}

// maxArgs is the bytes of a parameter list: the n-ary kernels have the longest.
const maxArgs = 1024

func newLaunchArgs(d *Device) (launchArgs, error) {
	const size, list = 40, 64 // offsets, after the array
	h, err := d.AllocHost(list + maxArgs)
	if err != nil {
		return launchArgs{}, err
	}
	const bufferPointer, bufferSize, end = 1, 2, 0
	copy(HostOf[uintptr](h, 0, 5), []uintptr{bufferPointer, h.addr(list), bufferSize, h.addr(size), end})
	return launchArgs{h, h.addr(0), HostOf[uint64](h, size, 1), HostOf[byte](h, list, maxArgs)}, nil
}

// args lays a parameter list out as a kernel reads it: each parameter aligned to its size. In kernels an int is an
// i64, a bool an int.
type args []byte

func pack(params ...any) args {
	var a args
	put := func(x uint64, bytes int) {
		for len(a)%bytes != 0 {
			a = append(a, 0)
		}
		for i := range bytes {
			a = append(a, byte(x>>(8*i)))
		}
	}
	for _, p := range params {
		switch x := p.(type) {
		case Ptr:
			put(uint64(x), 8)
		case int:
			put(uint64(x), 8)
		case float32:
			put(uint64(math.Float32bits(x)), 4)
		case bool:
			put(map[bool]uint64{true: 1}[x], 4)
		case []Ptr:
			for _, p := range x {
				put(uint64(p), 8)
			}
		}
	}
	return a
}

// grid is how a kernel is spread: blocks of threads, each with shared bytes of its own.
type grid struct {
	x, y    int // blocks
	threads int
	rows    int // of threads in a block; 0: one
	shared  int
}

// bind prepares a launch of a kernel that was compiled.
func (e *Engine) bind(kernel string, g grid, a args) (Work, error) {
	e.mu.Lock()
	fn, ok := e.kernels[kernel]
	e.mu.Unlock()
	if !ok {
		return nil, fmt.Errorf("cuda: no kernel %s was compiled", kernel)
	}
	if len(a) > maxArgs {
		return nil, fmt.Errorf("cuda: kernel %s: %d bytes of parameters", kernel, len(a))
	}
	if g.shared > 48<<10 {
		const maxDynamicShared = 8
		if err := e.drv.check(fmt.Sprintf("cuFuncSetAttribute %s: %d bytes of shared memory", kernel, g.shared), call(e.drv.cuFuncSetAttribute, fn, maxDynamicShared, uintptr(g.shared))); err != nil {
			return nil, err
		}
	}
	if g.x == 0 || g.y < 0 {
		return func() error { return nil }, nil
	}
	what := "launch " + kernel
	return func() error {
		copy(e.args.list, a)
		e.args.size[0] = uint64(len(a))
		return e.drv.check(what, call(e.drv.cuLaunchKernel, fn, uintptr(g.x), uintptr(max(g.y, 1)), 1,
			uintptr(g.threads), uintptr(max(g.rows, 1)), 1, uintptr(g.shared), e.Stream.handle, 0, e.args.extra))
	}, nil
}

// sequence is works one after another.
func sequence(works ...Work) Work {
	return func() error {
		for _, w := range works {
			if err := w(); err != nil {
				return err
			}
		}
		return nil
	}
}

// blocksOf is how many blocks of size cover n.
func blocksOf(n, size int) int { return (n + size - 1) / size }
