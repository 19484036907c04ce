package exec

import (
	"context"
	"errors"
	"fmt"

	"titan/libtitan/device/cuda"
)

// gpuProgram is the steps of a program on a stream, and their recording.
type gpuProgram struct {
	e              *cuda.Engine
	peers          *gpuPeers
	works          []cuda.Work
	names, classes []string // of each: the step, and what it is
	ran            bool
	graph          *cuda.Graph
}

func (g *gpuProgram) add(name, class string, w cuda.Work) {
	g.works, g.names, g.classes = append(g.works, w), append(g.names, name), append(g.classes, class)
}

// run puts every step on the stream and waits for the last.
func (g *gpuProgram) run(ctx context.Context) error {
	if err := g.launch(ctx); err != nil {
		return err
	}
	if err := g.peers.sync(ctx); err != nil {
		return fmt.Errorf("exec: a kernel of the step failed: %w: with CUDA_LAUNCH_BLOCKING=1 the error names it", err)
	}
	return nil
}

// launch does the first run step by step, so that libraries have made what they make once; then it records a graph.
func (g *gpuProgram) launch(ctx context.Context) error {
	if g.graph == nil && g.ran && !g.peers.staged {
		var err error
		if g.graph, err = g.e.Stream.Capture(func() error { return g.each(ctx) }); err != nil {
			return fmt.Errorf("exec: record the step: %w", err)
		}
	}
	g.ran = true
	if g.graph != nil {
		return g.e.Stream.Launch(g.graph)
	}
	return g.each(ctx)
}

// each puts the steps on the stream one by one.
func (g *gpuProgram) each(ctx context.Context) error {
	for i := range g.works {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := g.step(i); err != nil {
			return err
		}
	}
	return nil
}

func (g *gpuProgram) step(i int) error {
	if err := g.works[i](); err != nil {
		return fmt.Errorf("exec: %s: %w", g.names[i], err)
	}
	return nil
}

// Times runs a program on a GPU once, step by step, and adds up how long steps of a class took there, in milliseconds.
func (r *Runner) Times() (map[string]float64, error) {
	g := r.gpu
	if g == nil {
		return nil, errors.New("exec: only a GPU's steps are timed")
	}
	events := make([]*cuda.Event, len(g.works)+1)
	for i := range events {
		var err error
		if events[i], err = g.e.NewEvent(true); err != nil {
			return nil, err
		}
		defer events[i].Close()
	}
	for i, e := range events {
		if i > 0 {
			if err := g.step(i - 1); err != nil {
				return nil, err
			}
		}
		if err := g.e.Stream.Record(e); err != nil {
			return nil, err
		}
	}
	if err := g.e.Stream.Sync(); err != nil {
		return nil, err
	}
	out := map[string]float64{}
	for i, class := range g.classes {
		ms, err := events[i+1].Since(events[i])
		if err != nil {
			return nil, err
		}
		out[class] += float64(ms)
	}
	return out, nil
}
