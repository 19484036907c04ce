package train

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/device/cuda"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// newGPU makes what the rank holds on the device: the parameters, and for training their moments. The host keeps no
// copy: what is loaded goes there block by block.
func newGPU(k *rank, training bool) (*gpu, error) {
	cache, err := k.newCache()
	if err != nil {
		return nil, err
	}
	g := &gpu{e: k.gpu, cache: cache, held: k.held, state: map[tensorKind]map[string]cuda.Ptr{}, kept: map[plan.Class]map[string]cuda.Ptr{plan.Copy: {}, plan.Largest: {}}, numParams: len(k.job.Params), hasLoss: k.hasLoss()}
	kinds := stateKinds(training)
	for _, kind := range kinds {
		g.state[kind] = map[string]cuda.Ptr{}
	}
	for _, h := range g.held {
		for _, kind := range kinds {
			p, err := g.room(int(4*h.NumElements()), h.Param.FQN+" < "+kind.part())
			if err != nil {
				return nil, err
			}
			g.state[kind][h.Param.FQN] = p
		}
	}
	if err := g.openLanes(); err != nil {
		return nil, err
	}
	if g.saved, err = g.e.NewEvent(false); err != nil {
		return nil, err
	}
	if err := g.fill(k, kinds); err != nil {
		return nil, err
	}
	if training && k.saves() {
		g.copies = newCopies(g, k.job.Manifest.Checkpoint.AsyncMode, k.Log)
	}
	return g, nil
}

// room is memory that lives until it is released.
func (g *gpu) room(bytes int, owner string) (p cuda.Ptr, err error) {
	if g.cache != nil {
		p, err = g.cache.Fix(bytes, owner)
	} else {
		p, err = g.e.Alloc(bytes)
	}
	if err == nil {
		g.rooms = append(g.rooms, p)
	}
	return p, err
}

func (g *gpu) release(p cuda.Ptr) error {
	if g.cache != nil {
		return g.cache.Unfix(p)
	}
	return g.e.Free(p)
}

// fill gives every tensor what it starts from.
func (g *gpu) fill(k *rank, kinds []tensorKind) error {
	var blocks []block
	for _, h := range g.held {
		for _, kind := range kinds {
			if k.starts(kind) {
				blocks = append(blocks, blocksOf(kind, h, g.laneBytes)...)
			} else if err := g.e.Stream.Zero(g.state[kind][h.Param.FQN], int(4*h.NumElements())); err != nil {
				return err
			}
		}
	}
	return g.each(blocks, func(l *lane, b block) error {
		x := cuda.HostOf[float32](l.host, 0, int(b.part.NumElements()))
		if err := k.initial(b.kind, b.part, x); err != nil {
			return err
		}
		return l.stream.Upload(g.at(b), l.host, 0, b.bytes())
	})
}

// block is some rows of what a rank holds of a tensor.
type block struct {
	kind   tensorKind
	part   parallel.Held
	offset int64 // in bytes, in what the rank holds
}

func (b block) bytes() int { return int(4 * b.part.NumElements()) }

// at is where a block lies.
func (g *gpu) at(b block) cuda.Ptr { return g.state[b.kind][b.part.Param.FQN] + cuda.Ptr(b.offset) }

// rowBytes is the size of one row of what a rank holds: the least that a block can be.
func rowBytes(h parallel.Held) int64 {
	return 4 * h.NumElements() / max(1, h.Sizes[0])
}

// blocksOf cuts a part into blocks of at most size bytes, which is at least a row.
func blocksOf(kind tensorKind, h parallel.Held, size int) (out []block) {
	if h.NumElements() == 0 {
		return nil
	}
	row := rowBytes(h)
	rows := max(1, int64(size)/row)
	for first := int64(0); first < h.Sizes[0]; first += rows {
		b := block{kind, h, first * row}
		b.part.Offsets, b.part.Sizes = append([]int64(nil), h.Offsets...), append([]int64(nil), h.Sizes...)
		b.part.Offsets[0] += first
		b.part.Sizes[0] = min(rows, h.Sizes[0]-first)
		out = append(out, b)
	}
	return out
}

// lane is pinned memory, and a stream for the copies from and to it: what goes between the device and the host goes by
// way of one.
type lane struct {
	host   *cuda.Host
	stream *cuda.Stream
}

// Lanes and their size in bytes, if no row is larger: a copy of that size takes the bus 150 microseconds, and 8 are more
// than it needs to be busy.
const (
	maxLanes = 8
	laneSize = 8 << 20
)

func (g *gpu) openLanes() error {
	g.laneBytes = laneSize
	for _, h := range g.held {
		g.laneBytes = max(g.laneBytes, int(rowBytes(h)))
	}
	n := min(maxLanes, runtime.GOMAXPROCS(0))
	g.lanes = make(chan *lane, n)
	for range n {
		l := &lane{}
		var err error
		if l.host, err = g.e.AllocHost(g.laneBytes); err != nil {
			return err
		}
		if l.stream, err = g.e.NewStream(false); err != nil {
			return err
		}
		g.lanes <- l
	}
	return nil
}

func (g *gpu) closeLanes() error {
	for range cap(g.lanes) {
		l := <-g.lanes
		if err := l.host.Free(); err != nil {
			return err
		}
		if err := l.stream.Close(); err != nil {
			return err
		}
	}
	return nil
}

// borrow calls f with a lane, the device entered.
func (g *gpu) borrow(f func(l *lane) error) error {
	l := <-g.lanes
	defer func() { g.lanes <- l }()
	leave, err := g.e.Enter()
	if err != nil {
		return err
	}
	defer leave()
	return f(l)
}

// each calls f for all blocks, several at a time, each with a lane, whose stream is waited for then.
func (g *gpu) each(blocks []block, f func(l *lane, b block) error) error {
	var group errgroup.Group
	group.SetLimit(cap(g.lanes))
	for _, b := range blocks {
		group.Go(func() error {
			return g.borrow(func(l *lane) error {
				if err := f(l, b); err != nil {
					return err
				}
				return l.stream.Sync()
			})
		})
	}
	return group.Wait()
}

func (g *gpu) close() error {
	if err := g.copies.close(); err != nil {
		return err
	}
	if err := g.closeLanes(); err != nil {
		return err
	}
	if err := g.saved.Close(); err != nil {
		return err
	}
	for _, p := range g.rooms {
		if err := g.release(p); err != nil {
			return err
		}
	}
	for _, m := range g.programs {
		if err := m.Free(); err != nil {
			return err
		}
	}
	if g.cache != nil {
		if err := g.cache.EmptyCache(); err != nil {
			return err
		}
	}
	if g.optimizer == nil {
		return nil
	}
	return g.optimizer.Close()
}
