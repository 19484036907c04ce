package exec

import (
	"context"
	"fmt"
	"os"
	"slices"

	"titan/libtitan/device/cuda"
)

// gpuProgram is the steps of a program on a stream, and their recording.
type gpuProgram struct {
	e     *cuda.Engine
	peers *gpuPeers
	works []cuda.Work
	names []string // of each
	costs []Cost
	at    []int // of works, where each step of the plan begins
	ran   bool
	graph *cuda.Graph
	// cached: its steps are not here but in a cachedProgram.
	cached bool
}

func (g *gpuProgram) add(c Cost, name string, w cuda.Work) {
	g.works, g.names, g.costs = append(g.works, w), append(g.names, name), append(g.costs, c)
}

// insert puts w before what step i of the plan waits for and does.
func (g *gpuProgram) insert(i int, c Cost, w cuda.Work) {
	k := g.at[i]
	g.works, g.names, g.costs = slices.Insert(g.works, k, w), slices.Insert(g.names, k, c.Class), slices.Insert(g.costs, k, c)
	for j := i; j < len(g.at); j++ {
		g.at[j]++
	}
}

// await waits for a stream or an event.
func (g *gpuProgram) await(ctx context.Context, what interface{ Sync() error }) error {
	if err := g.peers.await(ctx, what); err != nil {
		return fmt.Errorf("exec: a kernel of the step failed: %w: with %s=1 the error names it", err, launchBlocking)
	}
	return nil
}

// unrecorded says why the program does not become a graph, "" if it does.
func (g *gpuProgram) unrecorded() string {
	switch {
	case g.cached:
		return "its values lie in a caching allocator, which may move them"
	case g.peers.staged:
		return "it sends to other pipeline stages, and the branches of a graph may wait for each other"
	case os.Getenv(launchBlocking) == "1":
		return launchBlocking + "=1"
	}
	return ""
}

// launchBlocking is CUDA's wish to wait after every kernel, so that errors name theirs.
const launchBlocking = "CUDA_LAUNCH_BLOCKING"

// Then puts w after all that a program does on a GPU, in the same graph.
func (r *Runner) Then(c Cost, w cuda.Work) { r.gpu.add(c, c.Class, w) }

// Before puts w before step i of a program's plan and the moves that this waits for, in the same graph; what w reads has to be there.
func (r *Runner) Before(i int, c Cost, w cuda.Work) { r.gpu.insert(i, c, w) }

// Start puts a program's steps on the stream of its GPU, and waits for none of them if it need not.
func (r *Runner) Start(ctx context.Context) error {
	if r.gpu.cached {
		return r.Run(ctx)
	}
	if err := r.tell(); err != nil {
		return err
	}
	return r.gpu.launch(ctx)
}

// Await waits for a stream or an event, and ends when the job has failed elsewhere.
func (r *Runner) Await(ctx context.Context, what interface{ Sync() error }) error {
	return r.gpu.await(ctx, what)
}

// Unrecorded says why a GPU's program does not become a graph, "" if it does.
func (r *Runner) Unrecorded() string {
	if r.gpu == nil {
		return ""
	}
	return r.gpu.unrecorded()
}

// run puts every step on the stream and waits for the last.
func (g *gpuProgram) run(ctx context.Context) error {
	if err := g.launch(ctx); err != nil {
		return err
	}
	return g.await(ctx, g.e.Stream)
}

// launch does the first run step by step, so that libraries have made what they make once; then it records a graph.
func (g *gpuProgram) launch(ctx context.Context) error {
	if g.graph == nil && g.ran && g.unrecorded() == "" {
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
