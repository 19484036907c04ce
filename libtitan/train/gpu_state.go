package train

import (
	"titan/libtitan/device/cuda"
	"titan/libtitan/parallel"
)

// newGPU puts what the rank holds on the device: the parameters, and for training their moments, which begin at zero
// or, resumed, at the state's.
func newGPU(e *cuda.Engine, held []parallel.Held, s *state, training, resume bool) (*gpu, error) {
	g := &gpu{e: e, held: held, state: s, params: map[string]cuda.Ptr{}}
	lists := []struct {
		on   map[string]cuda.Ptr
		from map[string][]float32
		copy bool
	}{{g.params, s.params, true}}
	if training {
		g.moments, g.second = map[string]cuda.Ptr{}, map[string]cuda.Ptr{}
		lists = append(lists, lists[0], lists[0])
		lists[1].on, lists[1].from, lists[1].copy = g.moments, s.m, resume
		lists[2].on, lists[2].from, lists[2].copy = g.second, s.v, resume
	}
	for _, h := range held {
		for _, list := range lists {
			var err error
			if list.on[h.Param.FQN], err = g.put(list.from[h.Param.FQN], int(h.NumElements()), list.copy); err != nil {
				return nil, err
			}
		}
	}
	return g, nil
}

// put takes memory for n elements and fills it from x, or with zeros.
func (g *gpu) put(x []float32, n int, upload bool) (cuda.Ptr, error) {
	p, err := g.e.Alloc(4 * n)
	if err != nil {
		return 0, err
	}
	if upload {
		return p, g.e.Upload(p, floatBytes(x))
	}
	return p, g.e.Stream.Zero(p, 4*n)
}

func (g *gpu) fetch() error {
	if err := g.e.Stream.Sync(); err != nil {
		return err
	}
	for _, h := range g.held {
		fqn := h.Param.FQN
		for _, list := range []struct {
			on map[string]cuda.Ptr
			to map[string][]float32
		}{{g.params, g.state.params}, {g.moments, g.state.m}, {g.second, g.state.v}} {
			if err := g.e.Download(floatBytes(list.to[fqn]), list.on[fqn]); err != nil {
				return err
			}
		}
	}
	return nil
}

func (g *gpu) close() error {
	for _, list := range []map[string]cuda.Ptr{g.params, g.moments, g.second} {
		for _, p := range list {
			if err := g.e.Free(p); err != nil {
				return err
			}
		}
	}
	for _, m := range g.programs {
		if err := m.Free(); err != nil {
			return err
		}
	}
	if g.optimizer == nil {
		return nil
	}
	return g.optimizer.Close()
}
