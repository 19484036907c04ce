package measure

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"

	"titan/libtitan/comm"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/estimate"
)

// gpu is an NVIDIA GPU.
type gpu struct {
	e       *cuda.Engine
	free    int // bytes, before anything was taken
	taken   []cuda.Ptr
	updates []*cuda.Optimizer
	err     error // the first of take
}

// gpuMachine measures this process' GPU, and with other ranks what they move to each other.
func gpuMachine(ctx context.Context, o Options) (m *estimate.Machine, err error) {
	launch, err := comm.Launched(os.Getenv)
	if err != nil {
		return nil, err
	}
	index := 0
	if n, err := cuda.Count(); err != nil {
		return nil, err
	} else if n > 1 {
		index = launch.LocalRank
	}
	d, err := cuda.Open(index)
	if err != nil {
		return nil, err
	}
	alone := func(ctx context.Context) (err error) {
		if m, err = gpuCompute(ctx, d, o); err == nil {
			base(m, d.Name)
		}
		return err
	}
	if launch.Size < 2 {
		leave, err := d.Enter()
		if err != nil {
			return nil, err
		}
		defer leave()
		return m, alone(ctx)
	}
	err = nccl.Run(ctx, d, o.Comm, func(ctx context.Context, r *nccl.Rank) error {
		if err := alone(ctx); err != nil {
			return err
		}
		m.GPUsPerNode = max(m.GPUsPerNode, r.Size())
		m.Measured.Collectives, err = gpuCollectives(ctx, d, r)
		if _, known := baseOf(d.Name); !known {
			link(m)
		}
		return err
	})
	return m, err
}

func gpuCompute(ctx context.Context, d *cuda.Device, o Options) (*estimate.Machine, error) {
	s, err := d.NewStream(false)
	if err != nil {
		return nil, err
	}
	e, err := cuda.NewEngine(d, s, cuda.Options{})
	if err != nil {
		return nil, err
	}
	g := &gpu{e: e}
	if g.free, _, err = d.MemInfo(); err != nil {
		return nil, err
	}
	m, err := compute(ctx, g, o.Log)
	if closed := e.Close(); err == nil {
		err = closed
	}
	return m, err
}

// base takes what cannot be measured here (peaks, links to other nodes) from the known machine that the name has.
func base(m *estimate.Machine, name string) {
	known, ok := baseOf(name)
	if !ok {
		return
	}
	known.Name, known.About, known.MemoryBytes, known.SMs = m.Name, m.About, m.MemoryBytes, m.SMs
	known.Software, known.Measured = m.Software, m.Measured
	*m = known
}

// baseOf is the known machine that a word of a GPU's name names.
func baseOf(name string) (estimate.Machine, bool) {
	for _, word := range strings.Fields(name) {
		if m, err := estimate.FindMachine(word); err == nil {
			return m, true
		}
	}
	return estimate.Machine{}, false
}

func (g *gpu) sizes() sizes {
	const T = 8192
	return sizes{
		types: []dtype.DType{dtype.BFloat16, dtype.Float32},
		products: []product{{T, 256, 256}, {T, 256, 768}, {T, 1024, 1024}, {T, 2048, 2048}, {T, 2048, 8192}, {T, 4096, 1024}, {T, 4096, 4096}, {T, 4096, 14336}, {T, 14336, 4096},
			{2048, 4096, 4096}},
		attention: []attention{{8, 2048, 16, 16}, {8, 1024, 32, 64}, {4, 2048, 32, 64}, {2, 8192, 32, 64}, {8, 1024, 32, 128}, {4, 2048, 32, 128}, {1, 8192, 32, 128}},
		layer:     layer{T, 4096, 14336, 32},
		rows:      T, vocab: 128256, params: 256 << 20, copy: 1 << 30,
	}
}

// describe fills in what the driver says of the GPU. What its context and the libraries take is not free.
func (g *gpu) describe(m *estimate.Machine) error {
	m.Name, m.SMs, m.ClockGHz = strings.ToLower(strings.ReplaceAll(g.e.Name, " ", "-")), g.e.SMs, 1
	m.About = fmt.Sprintf("%v as measured", g.e.Device)
	m.MemoryBytes = int64(g.free)
	return nil
}

// take is n random elements, in [-1, 1): a short random run, doubled until it is long enough. A failure is told by
// seconds.
func (g *gpu) take(t dtype.DType, n int) cuda.Ptr {
	if g.err != nil {
		return 0
	}
	size := t.Size()
	p, err := g.e.Alloc(n * size)
	if err != nil {
		g.err = err
		return 0
	}
	g.taken = append(g.taken, p)
	have := min(n, 1<<16)
	text := make([]byte, 0, have*size)
	for _, v := range floats(have) {
		bits := math.Float32bits(v)
		if size == 4 {
			text = append(text, byte(bits), byte(bits>>8))
		}
		text = append(text, byte(bits>>16), byte(bits>>24))
	}
	if g.err = g.e.Upload(p, text); g.err != nil {
		return 0
	}
	for ; have < n && g.err == nil; have *= 2 {
		g.err = g.e.Stream.Copy(p+cuda.Ptr(have*size), p, min(have, n-have)*size)
	}
	return p
}

// labels is n of the first classes.
func (g *gpu) labels(n int) cuda.Ptr {
	p := g.take(dtype.Float32, n)
	if g.err == nil {
		g.err = g.e.Stream.Zero(p, 4*n)
	}
	return p
}

// bind collects works, and the first failure to make one.
func (g *gpu) bind(list *[]work, w cuda.Work, err error) {
	if g.err == nil {
		g.err = err
	}
	*list = append(*list, work(w))
}

// ready is what was bound, unless something failed.
func (g *gpu) ready(list []work) ([]work, error) { return list, g.err }

const rounds, leastMS = 5, 120

// seconds is the average of as many rounds as fill the time: a card that works is hot.
func (g *gpu) seconds(works ...work) (float64, error) {
	begin, err := g.e.NewEvent(true)
	if err != nil {
		return 0, err
	}
	defer begin.Close()
	end, err := g.e.NewEvent(true)
	if err != nil {
		return 0, err
	}
	defer end.Close()
	ms := float32(0)
	for n := 1; ; n = max(rounds, int(leastMS*float32(n)/max(ms, 1e-3))) {
		if err := g.e.Stream.Record(begin); err != nil {
			return 0, err
		}
		for range n {
			for _, w := range works {
				if err := w(); err != nil {
					return 0, err
				}
			}
		}
		if err := g.e.Stream.Record(end); err != nil {
			return 0, err
		}
		if err := end.Sync(); err != nil {
			return 0, err
		}
		if ms, err = end.Since(begin); err != nil {
			return 0, err
		}
		if n >= rounds && ms >= leastMS/2 || n >= 1<<14 {
			return float64(ms) / 1e3 / float64(n), nil
		}
	}
}

func (g *gpu) release() error {
	err := g.e.Stream.Sync()
	for _, o := range g.updates {
		if closed := o.Close(); err == nil {
			err = closed
		}
	}
	for _, p := range g.taken {
		if freed := g.e.Free(p); err == nil {
			err = freed
		}
	}
	g.taken, g.updates = nil, nil
	return err
}

func (g *gpu) products(t dtype.DType, s product) (list []work, err error) {
	T, in, out, f32 := s.tokens, s.in, s.out, dtype.Float32
	x, w, y, dx, dw := g.take(t, T*in), g.take(t, in*out), g.take(t, T*out), g.take(t, T*in), g.take(f32, in*out)
	for _, p := range []struct {
		cuda.Product
		c, a, b cuda.Ptr
	}{
		{cuda.Product{M: T, N: out, K: in, TransB: true, In: t, Out: t}, y, x, w},
		{cuda.Product{M: T, N: in, K: out, In: t, Out: t}, dx, y, w},
		{cuda.Product{M: out, N: in, K: T, TransA: true, In: t, Out: f32, Add: true}, dw, y, x},
	} {
		does, err := g.e.Product(p.Product, p.c, p.a, p.b)
		g.bind(&list, does, err)
	}
	return g.ready(list)
}

func (g *gpu) attention(t dtype.DType, a attention) (forward, backward work, err error) {
	n := a.rows * a.seqLen * a.heads * a.headDim
	s := cuda.AttnShape{Batch: a.rows, SeqQ: a.seqLen, SeqK: a.seqLen, Heads: a.heads, KVHeads: a.heads, HeadDim: a.headDim, Scale: float32(1 / math.Sqrt(float64(a.headDim)))}
	lse, q, k, v, o, do := g.take(dtype.Float32, a.rows*a.heads*a.seqLen), g.take(t, n), g.take(t, n), g.take(t, n), g.take(t, n), g.take(t, n)
	dq, dk, dv := g.take(t, n), g.take(t, n), g.take(t, n)
	var list []work
	w, err := g.e.Attention(t, o, lse, q, k, v, s)
	g.bind(&list, w, err)
	w, err = g.e.AttentionBackward(t, dq, dk, cuda.Columns{P: dv}, do, q, k, v, o, lse, s)
	g.bind(&list, w, err)
	if g.err == nil {
		g.err = list[0]() // the backward reads what it leaves
	}
	return list[0], list[1], g.err
}

func (g *gpu) layer(t dtype.DType, l layer) ([]work, error) {
	T, D, F, f32 := l.tokens, l.dim, l.ffn, dtype.Float32
	stream := func() cuda.Ptr { return g.take(t, T*D) }
	x, y, z, dy, weight, rstd, dw, angles := stream(), stream(), stream(), stream(), g.take(t, D), g.take(f32, T), g.take(f32, D), g.take(f32, T*D/l.heads/2)
	wide := func() cuda.Ptr { return g.take(t, T*F) }
	a, b, u, da, db := wide(), wide(), wide(), wide(), wide()
	var list []work
	for _, make := range []func() (cuda.Work, error){
		func() (cuda.Work, error) { return g.e.RMSNorm(t, y, rstd, x, weight, T, D, 1e-5) },
		func() (cuda.Work, error) { return g.e.RMSNormBackward(t, z, dw, dy, x, weight, rstd, T, D, true) },
		func() (cuda.Work, error) {
			return g.e.Rope(t, cuda.Columns{P: y}, x, angles, angles, 1, T, l.heads, D/l.heads, false)
		},
		func() (cuda.Work, error) { return g.e.Add(t, y, T*D, x, z) },
		func() (cuda.Work, error) { return g.e.Add(t, y, T*D, x, z, dy) },
		func() (cuda.Work, error) { return g.e.SwiGLU(t, u, a, b, T*F) },
		func() (cuda.Work, error) { return g.e.SwiGLUBackward(t, da, db, u, a, b, T*F) },
	} {
		w, err := make()
		g.bind(&list, w, err)
	}
	return g.ready(once(list[0], list[1], list[2], list[3], list[4], list[5], list[6]))
}

func (g *gpu) loss(t dtype.DType, rows, vocab int) (list []work, err error) {
	f32 := dtype.Float32
	logits, grad := g.take(t, rows*vocab), g.take(t, rows*vocab)
	loss, lse, labels, scale := g.take(f32, 1), g.take(f32, rows), g.labels(rows), g.take(f32, 1)
	w, err := g.e.CrossEntropyBoth(t, grad, loss, lse, logits, labels, scale, rows, vocab)
	g.bind(&list, w, err)
	return g.ready(list)
}

func (g *gpu) update(n int) ([]work, error) {
	f := func() cuda.Ptr { return g.take(dtype.Float32, n) }
	p := cuda.Param{P: f(), G: f(), M: f(), V: f(), N: n}
	if g.err != nil {
		return nil, g.err
	}
	o, err := g.e.NewOptimizer([]cuda.Param{p}, cuda.Tally{Where: []int{-1}})
	if err != nil {
		return nil, err
	}
	g.updates = append(g.updates, o)
	o.Set(cuda.AdamW{LR: 1e-5, Beta1: 0.9, Beta2: 0.95, Eps: 1e-8, WeightDecay: 0.1, C1: 1, C2: 1, MaxNorm: 1})
	for _, w := range []cuda.Work{o.Measure, o.Clip} { // an update needs a norm
		if err := w(); err != nil {
			return nil, err
		}
	}
	return []work{work(o.Update)}, nil
}

func (g *gpu) copies(bytes int) ([]work, error) {
	x, y := g.take(dtype.Float32, bytes/4), g.take(dtype.Float32, bytes/4)
	return g.ready([]work{func() error { return g.e.Stream.Copy(y, x, bytes) }})
}
