package exec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"titan/libtitan/alloc"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
	"titan/libtitan/plan"
)

// CUDACache is a caching allocator over the memory of a GPU, as PyTorch's, for those who want to see what it makes of a
// stream policy: each value is taken where it is first touched and freed after its last use, and moves run on
// streams of their own.
type CUDACache struct {
	*alloc.Allocator
	Policy  alloc.Policy
	e       *cuda.Engine
	streams map[alloc.Stream]*cuda.Stream
	fixed   map[cuda.Ptr]*alloc.Block
}

// NewCUDACache is an empty one on e's device; trace, which may be nil, is told everything.
func NewCUDACache(e *cuda.Engine, p alloc.Policy, trace func(alloc.Event)) (*CUDACache, error) {
	c := &CUDACache{Policy: p, e: e, streams: map[alloc.Stream]*cuda.Stream{plan.ComputeStream: e.Stream}, fixed: map[cuda.Ptr]*alloc.Block{}}
	var err error
	c.Allocator, err = alloc.New(gpuSegments{c}, alloc.Options{Config: alloc.Config{Policy: p}, Trace: trace})
	return c, err
}

// Fix takes memory that lives until Unfix.
func (c *CUDACache) Fix(bytes int, owner string) (cuda.Ptr, error) {
	b, err := c.Malloc(alloc.Request{Bytes: int64(max(1, bytes)), Owner: owner})
	if err != nil {
		return 0, err
	}
	p := cuda.Ptr(b.Addr())
	c.fixed[p] = b
	return p, nil
}

// Unfix frees it.
func (c *CUDACache) Unfix(p cuda.Ptr) error {
	b := c.fixed[p]
	if b == nil {
		return nil
	}
	delete(c.fixed, p)
	return c.Free(b)
}

// take takes the memory of a program: with a cache, all but the arena.
func (m *CUDAMemory) take(fixed, arena int) (cuda.Ptr, error) {
	if m.cache == nil {
		return m.e.Alloc(fixed + arena)
	}
	m.values = plan.NewCached(m.cache.Allocator)
	return m.cache.Fix(fixed, "inputs and constants")
}

// unfix gives it back to the cache, with the gradients.
func (m *CUDAMemory) unfix() error {
	err := m.cache.Unfix(m.all)
	for _, g := range m.Grads {
		err = errors.Join(err, m.cache.Unfix(g.P), m.cache.Unfix(g.Rows))
	}
	return err
}

// inArena is where a value of the arena lies, with a cache while it lives.
func (m *CUDAMemory) inArena(s *plan.Slot) (p cuda.Ptr, ok bool) {
	if m.cache == nil {
		return m.arena + cuda.Ptr(s.Offset), true
	}
	addr, ok := m.values.Addr(s)
	return cuda.Ptr(addr), ok
}

// stream finds or makes a stream.
func (c *CUDACache) stream(s alloc.Stream) (*cuda.Stream, error) {
	if have := c.streams[s]; have != nil {
		return have, nil
	}
	made, err := c.e.NewStream(true)
	if err == nil {
		c.streams[s] = made
	}
	return made, err
}

// gpuSegments is the driver as an alloc.Device.
type gpuSegments struct{ *CUDACache }

func (d gpuSegments) Alloc(bytes int64) (uint64, error) {
	p, err := d.e.Alloc(int(bytes))
	return uint64(p), err
}

func (d gpuSegments) Free(addr uint64, _ int64) error { return d.e.Free(cuda.Ptr(addr)) }

func (d gpuSegments) Record(s alloc.Stream) (alloc.Mark, error) {
	on, err := d.stream(s)
	if err != nil {
		return nil, err
	}
	e, err := d.e.NewEvent(false)
	if err != nil {
		return nil, err
	}
	return gpuMark{e}, on.Record(e)
}

type gpuMark struct{ *cuda.Event }

func (m gpuMark) Passed() (bool, error) { return m.Done() }
func (m gpuMark) Wait() error           { return m.Sync() }
func (m gpuMark) Release()              { _ = m.Close() } // it has passed: all that is lost is a handle

// cachedProgram goes down the steps of a program whose values are in a cache, one by one, also when they have run
// before: where values lie may change from run to run. A step is bound once for each set of addresses.
type cachedProgram struct {
	prog   *plan.Program
	mem    *CUDAMemory
	peers  *gpuPeers
	fused  map[*plan.Step]*plan.Step
	values *plan.Values
	bound  []map[string]cuda.Work // by step, by addresses
	ready  *cuda.Event
	done   []*cuda.Event // of moves, by step
}

// maxBound is how many sets of addresses of a step are remembered.
const maxBound = 64

func loadCached(prog *plan.Program, mem *CUDAMemory, peers *gpuPeers) (*Runner, error) {
	if peers.staged {
		return nil, exit.Input.Errorf("--stream-policy: stages keep what they send in places of their own: plan with --pp 1, or leave the policy out")
	}
	c := mem.cache
	r := &cachedProgram{prog: prog, mem: mem, peers: peers, fused: fuseLosses(prog), bound: make([]map[string]cuda.Work, len(prog.Steps)), done: make([]*cuda.Event, len(prog.Steps))}
	r.values = plan.Follow(prog, mem.values, c.Policy == alloc.SameStream)
	var err error
	if r.ready, err = mem.e.NewEvent(false); err != nil {
		return nil, err
	}
	for i := range prog.Steps {
		r.bound[i] = map[string]cuda.Work{}
		if r.values.Stream(i) != plan.ComputeStream {
			if r.done[i], err = mem.e.NewEvent(false); err != nil {
				return nil, err
			}
		}
	}
	return &Runner{prog: prog, gpu: &gpuProgram{e: mem.e, peers: peers, cached: true}, steps: []func(context.Context) error{r.run}}, nil
}

func (r *cachedProgram) run(ctx context.Context) error {
	compute := r.mem.e.Stream
	if err := compute.Upload(r.mem.inputs, r.mem.host, 0, r.mem.inputBytes); err != nil {
		return err
	}
	for i := range r.prog.Steps {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := r.step(i); err != nil {
			return fmt.Errorf("exec: %s: %w", &r.prog.Steps[i], err)
		}
	}
	if err := r.await(r.values.Join()); err != nil {
		return err
	}
	if err := compute.Download(r.mem.host, r.mem.inputBytes, r.mem.loss, 4*len(r.mem.Loss)); err != nil {
		return err
	}
	return r.peers.await(ctx, compute)
}

// await has the stream that computes wait for moves.
func (r *cachedProgram) await(moves []int) error {
	for _, i := range moves {
		if err := r.mem.e.Stream.Wait(r.done[i]); err != nil {
			return err
		}
	}
	return nil
}

func (r *cachedProgram) step(i int) error {
	moves, err := r.values.Begin(i)
	if err != nil {
		return err
	}
	if err := r.await(moves); err != nil {
		return err
	}
	if err := r.launch(i); err != nil {
		return err
	}
	return r.values.End(i)
}

// launch puts step i on its stream, after all that was put on the stream that computes.
func (r *cachedProgram) launch(i int) error {
	s := &r.prog.Steps[i]
	if r.fused[s] == s {
		return nil // done at its backward
	}
	on, err := r.mem.cache.stream(r.values.Stream(i))
	if err != nil {
		return err
	}
	w, err := r.bind(i, s, on)
	switch {
	case err != nil:
		return err
	case r.done[i] == nil:
		return w()
	}
	if err := errors.Join(r.mem.e.Stream.Record(r.ready), on.Wait(r.ready)); err != nil {
		return err
	}
	if err := w(); err != nil {
		return err
	}
	return on.Record(r.done[i])
}

// bind is the step's work where its values lie now.
func (r *cachedProgram) bind(i int, s *plan.Step, on *cuda.Stream) (w cuda.Work, err error) {
	key, err := r.addresses(s)
	if err != nil {
		return nil, err
	}
	if w := r.bound[i][key]; w != nil {
		return w, nil
	}
	r.peers.on = on
	if w, err = bindWith(r.mem.e, s, r.fused[s], r.mem); err != nil {
		return nil, err
	}
	if len(r.bound[i]) == maxBound {
		clear(r.bound[i])
	}
	r.bound[i][key] = w
	return w, nil
}

// addresses is where a step's values lie, as a key.
func (r *cachedProgram) addresses(s *plan.Step) (string, error) {
	slots := slices.Concat(s.In, s.Out)
	if s.Scratch != nil {
		slots = append(slots, s.Scratch)
	}
	if first := r.fused[s]; first != nil {
		slots = slices.Concat(slots, first.In, first.Out)
	}
	var key []byte
	for _, slot := range slots {
		t, err := r.mem.at(slot)
		if err != nil {
			return "", err
		}
		key = binary.LittleEndian.AppendUint64(key, uint64(t.p))
	}
	return string(key), nil
}
