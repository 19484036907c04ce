package train

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// take holds the state fast in one of three ways. Where training waits, blocks come from the device as they are written.
// Else the state is copied first: into ordinary memory, for which training waits; or into pinned memory, by the device
// itself while it computes the next step, whose update waits.
func (g *gpu) take(mode string) (snapshot, error) {
	switch mode {
	case manifest.AsyncOff:
		return onDevice{g}, g.e.Stream.Sync()
	case manifest.AsyncThread:
		return g.copies, g.copies.now()
	}
	return g.copies, g.copies.begin()
}

// onDevice reads the state where it is.
type onDevice struct{ *gpu }

func (g onDevice) wait() error { return nil }
func (g onDevice) free() error { return nil }

func (g onDevice) read(kind tensorKind, fqn string, dst []byte, off int64) error {
	return g.borrow(func(l *lane) error {
		for from := g.state[kind][fqn] + cuda.Ptr(off); len(dst) > 0; {
			n := min(len(dst), g.laneBytes)
			if err := l.stream.Download(l.host, 0, from, n); err != nil {
				return err
			}
			if err := l.stream.Sync(); err != nil {
				return err
			}
			copy(dst, l.host.Bytes()[:n])
			dst, from = dst[n:], from+cuda.Ptr(n)
		}
		return nil
	})
}

// fitsCopies refuses saves beside the training that copy more than the machine has memory for, which is have bytes; 0: that
// is not known. A rank counts itself alone, not others of the machine.
func (r *run) fitsCopies(me int, have int64) error {
	if !r.saves() || !r.job.Manifest.Checkpoint.Async() {
		return nil
	}
	need := int64(0)
	for _, h := range r.job.Held(me) {
		if h.First {
			need += 12 * h.NumElements()
		}
	}
	if have == 0 || need <= have {
		return nil
	}
	return exit.Input.Errorf("memory: a copy of the state takes %s, this machine has %s left: save with --async off", manifest.HumanBytes(need), manifest.HumanBytes(have))
}

// copies are the rank's share of the state in the host's memory, which stays from save to save.
type copies struct {
	g       *gpu
	blocks  []block
	at      map[tensorKind]map[string]hostCopy
	made    chan struct{} // closed when the memory is there, or is not to be had
	err     error
	pinned  bool
	making  time.Duration // that the room took,
	pinning time.Duration // and of that its being pinned
	stream  *cuda.Stream  // of copies into pinned memory
	start   *cuda.Event   // the state is that of the step
	end     *cuda.Event   // it is copied; updates wait for it
}

// hostCopy is that of one part of a tensor.
type hostCopy struct {
	bytes  []byte
	mapped bool       // it is pages of its own
	host   *cuda.Host // the same, pinned; nil: it is not
}

// newCopies begins to make room for copies in the given mode; nil where none are made. That takes a while: the start and
// the first step go on meanwhile.
func newCopies(g *gpu, mode string, log *slog.Logger) *copies {
	if mode != manifest.AsyncThread && mode != manifest.AsyncPinned {
		return nil
	}
	c := &copies{g: g, at: map[tensorKind]map[string]hostCopy{}, made: make(chan struct{}), pinned: mode == manifest.AsyncPinned, end: g.saved}
	go func() {
		defer close(c.made)
		began := time.Now()
		c.err = c.make()
		c.making = time.Since(began)
		log.Debug(fmt.Sprintf("saves: room for a copy of the state took %.2f s, of them %.2f to pin it", c.making.Seconds(), c.pinning.Seconds()))
	}()
	return c
}

func (c *copies) make() (err error) {
	leave, err := c.g.e.Enter()
	if err != nil {
		return err
	}
	defer leave()
	if c.stream, err = c.g.e.NewStream(false); err != nil {
		return err
	}
	if c.start, err = c.g.e.NewEvent(false); err != nil {
		return err
	}
	for _, kind := range stateKinds(true) {
		c.at[kind] = map[string]hostCopy{}
		for _, h := range c.g.held {
			if !h.First {
				continue
			}
			if c.at[kind][h.Param.FQN], err = c.room(int(4 * h.NumElements())); err != nil {
				return err
			}
			c.blocks = append(c.blocks, blocksOf(kind, h, c.g.laneBytes)...)
		}
	}
	return nil
}

// ready waits until there is room. The first step does, for the second is recorded, and while it is, nothing may be
// pinned beside it.
func (c *copies) ready() error {
	if c == nil {
		return nil
	}
	<-c.made
	return c.err
}

// room is memory for a part of a tensor, pinned if saves want it so.
func (c *copies) room(bytes int) (p hostCopy, err error) {
	if bytes == 0 {
		return p, nil
	}
	if p.bytes, err = unix.Mmap(-1, 0, bytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON); err != nil {
		return hostCopy{}, exit.Lost.Errorf("memory for saves beside the training: %s more: %w: save with --async off", manifest.HumanBytes(int64(bytes)), err)
	}
	p.mapped = true
	if touch(p.bytes); !c.pinned {
		return p, nil
	}
	began := time.Now()
	defer func() { c.pinning += time.Since(began) }()
	if p.host, err = c.g.e.Pin(p.bytes); err == nil {
		return p, nil
	}
	// Not every system pins pages that are there: then the driver makes them, one after the other.
	if err := p.free(); err != nil {
		return p, err
	}
	if p.host, err = c.g.e.AllocHost(bytes); err != nil {
		return hostCopy{}, err
	}
	return hostCopy{bytes: p.host.Bytes(), host: p.host}, nil
}

// touch has the kernel give the pages of fresh memory, which it does when they are first written to: now, by several
// threads, and not while training waits for a copy.
func touch(x []byte) {
	_ = unix.Madvise(x, unix.MADV_HUGEPAGE) // small pages do too
	const chunk, page = 64 << 20, 4 << 10
	var group errgroup.Group
	group.SetLimit(max(1, runtime.GOMAXPROCS(0)/2)) // the start has work for the others
	for part := range slices.Chunk(x, chunk) {
		group.Go(func() error {
			for i := 0; i < len(part); i += page {
				part[i] = 0
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
}

func (p hostCopy) free() error {
	if p.host != nil {
		if err := p.host.Free(); err != nil {
			return err
		}
	}
	if !p.mapped {
		return nil
	}
	return unix.Munmap(p.bytes)
}

// of is the copy of the part that b is of.
func (c *copies) of(b block) hostCopy { return c.at[b.kind][b.part.Param.FQN] }

// now copies the state into ordinary memory by way of the lanes.
func (c *copies) now() error {
	if err := c.ready(); err != nil {
		return err
	}
	if err := c.g.e.Stream.Sync(); err != nil {
		return err
	}
	return c.g.each(c.blocks, func(l *lane, b block) error {
		if err := l.stream.Download(l.host, 0, c.g.at(b), b.bytes()); err != nil {
			return err
		}
		if err := l.stream.Sync(); err != nil {
			return err
		}
		copy(c.of(b).bytes[b.offset:], l.host.Bytes()[:b.bytes()])
		return nil
	})
}

// begin has the device copy the state into pinned memory, after what computes the step's update. Blocks let other copies
// in between.
func (c *copies) begin() error {
	if err := c.ready(); err != nil {
		return err
	}
	if err := c.g.e.Stream.Record(c.start); err != nil {
		return err
	}
	if err := c.stream.Wait(c.start); err != nil {
		return err
	}
	for _, b := range c.blocks {
		if err := c.stream.Download(c.of(b).host, int(b.offset), c.g.at(b), b.bytes()); err != nil {
			return err
		}
	}
	return c.stream.Record(c.end)
}

// wait waits for the copy that the device makes.
func (c *copies) wait() error {
	if !c.pinned {
		return nil
	}
	leave, err := c.g.e.Enter()
	if err != nil {
		return err
	}
	defer leave()
	return c.end.Sync()
}

func (c *copies) read(kind tensorKind, fqn string, dst []byte, off int64) error {
	copy(dst, c.at[kind][fqn].bytes[off:])
	return nil
}

func (c *copies) free() error { return nil }

func (c *copies) close() error {
	if c == nil {
		return nil
	}
	<-c.made
	if c.stream == nil {
		return c.err
	}
	if err := c.stream.Sync(); err != nil {
		return err
	}
	for _, list := range c.at {
		for _, part := range list {
			if err := part.free(); err != nil {
				return err
			}
		}
	}
	if c.start != nil {
		if err := c.start.Close(); err != nil {
			return err
		}
	}
	return c.stream.Close()
}
