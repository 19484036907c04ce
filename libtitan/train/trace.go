package train

import (
	"fmt"
	"slices"
	"sync"

	"titan/libtitan/alloc"
	"titan/libtitan/exec"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/plan"
	memtrace "titan/libtitan/snapshot"
)

// The memory of a rank, and its trace. Values lie in a planned arena, unless Options.StreamPolicy names a policy: then,
// on a GPU, they lie in a caching allocator under it. The trace says which value came and went when; on the host a policy
// is the trace's alone, that of an allocator's twin, for the arena stays what is computed on.

// memoryTrace takes down the events of one rank's memory.
type memoryTrace struct {
	mu sync.Mutex
	w  *memtrace.Writer // nil: closed
}

// event adds one. It may be called by an allocator whose memory is still given back when the trace has ended.
func (t *memoryTrace) event(e alloc.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.w != nil {
		t.w.Event(e)
	}
}

// close ends the trace.
func (t *memoryTrace) close() error {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.w == nil {
		return nil
	}
	err := t.w.Close()
	if t.w = nil; err != nil {
		return fmt.Errorf("memory trace: %w", err)
	}
	return nil
}

// policy is the allocator's, ok is false where values lie in the arena.
func (r *run) policy() (p alloc.Policy, ok bool) {
	at := slices.Index(alloc.Policies, r.StreamPolicy)
	return alloc.Policy(max(at, 0)), at >= 0
}

// openTrace begins the rank's trace if it is the one that is traced.
func (k *rank) openTrace() (err error) {
	if k.TraceMemory == nil || k.comm.Rank() != k.TraceRank {
		return nil
	}
	t := &memoryTrace{}
	if p, ok := k.policy(); ok {
		t.w, err = memtrace.NewWriter(k.TraceMemory, k.TraceRank, alloc.Config{Policy: p})
	} else {
		t.w, err = memtrace.NewArenaWriter(k.TraceMemory, k.TraceRank)
	}
	if err != nil {
		return fmt.Errorf("memory trace: %w", err)
	}
	k.trace = t
	return nil
}

// newCache is the caching allocator of a rank on a GPU, nil if none was asked for.
func (k *rank) newCache() (*exec.CUDACache, error) {
	p, ok := k.policy()
	if !ok {
		return nil, nil
	}
	if k.trace == nil {
		return exec.NewCUDACache(k.gpu, p, nil)
	}
	return exec.NewCUDACache(k.gpu, p, k.trace.event)
}

// part is how owners in traces name what a tensor of this kind is part of.
func (t tensorKind) part() string {
	if t == aParameter {
		return "parameters"
	}
	return "optimizer"
}

// follow has the trace follow the program that trains, unless an allocator tells of it.
func (k *rank) follow(prog *plan.Program) error {
	p, cached := k.policy()
	if k.trace == nil || cached && k.gpu != nil {
		return nil
	}
	if !cached {
		k.runner.Follow(plan.Follow(prog, plan.NewPlaced(prog, k.trace.event), false))
		return nil
	}
	twin, _, err := plan.NewTwin(prog, alloc.Options{Config: alloc.Config{Policy: p}, Trace: k.trace.event})
	if err != nil {
		return err
	}
	k.runner.Follow(plan.Follow(prog, twin, p == alloc.SameStream))
	return nil
}

// tellMemory says what the allocator counted, for one rank.
func (k *rank) tellMemory() {
	g, ok := k.machine.(*gpu)
	if !ok || g.cache == nil || k.comm.Rank() != k.TraceRank {
		return
	}
	s := g.cache.Stats()
	size := manifest.HumanBytes
	k.Log.Info(fmt.Sprintf("memory under %s, rank %d, at most: requested %s  allocated %s  active %s (%s of it pending then)  reserved %s in %s",
		k.StreamPolicy, k.TraceRank, size(s.Peak.Requested), size(s.Peak.Allocated), size(s.Peak.Active), size(s.AtPeakActive.Pending), size(s.Peak.Reserved), manifest.Counted(s.Segments, "segment")))
	k.Log.Debug(fmt.Sprintf("memory in bytes, at most: %+v", s.Peak))
}

// checkTrace refuses what cannot be traced.
func (o *Options) checkTrace(ranks int) error {
	switch {
	case o.TraceRank < 0 || o.TraceRank >= ranks:
		return exit.Usage.Errorf("--trace-rank %d: the mesh has ranks 0 to %d", o.TraceRank, ranks-1)
	case o.StreamPolicy != "" && !slices.Contains(alloc.Policies, o.StreamPolicy):
		return exit.Usage.Errorf("--stream-policy %s: want one of %v", o.StreamPolicy, alloc.Policies)
	}
	return nil
}
