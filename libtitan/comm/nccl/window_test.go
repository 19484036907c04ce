package nccl

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
)

// Members of a group must want one window: who wants another, or none, would be waited for.
func TestSameWindows(t *testing.T) {
	g, h := comm.Group{Name: "dp_shard", Ranks: []int{0, 1}}, comm.Group{Name: "dp_shard", Ranks: []int{2, 3}}
	of := func(g comm.Group, bytes int) ask { return ask{Groups: []comm.Group{g}, Bytes: bytes} }
	require.NoError(t, sameWindows([]ask{of(g, 64), of(g, 64), of(h, 128), of(h, 128)}))
	require.NoError(t, sameWindows([]ask{{}, {}}))
	require.ErrorContains(t, sameWindows([]ask{of(g, 64), of(g, 128)}), "rank 0 wants a window of 64 bytes for dp_shard [0 1], rank 1 of 128")
	require.ErrorContains(t, sameWindows([]ask{of(g, 64), {}}), "rank 0 moves tensors in dp_shard [0 1], rank 1 does not")
}

// window opens one, if asked to.
func (b *bench) window(ctx context.Context, g comm.Group, bytes int, open bool) (cuda.Span, error) {
	if !open {
		return cuda.Span{}, nil
	}
	p, err := b.OpenWindow(ctx, g, bytes)
	return cuda.Span{P: p, Bytes: bytes}, err
}

// inPlace is whole as a tensor of equal parts, the member's own in its place.
func inPlace(whole cuda.Span, me, members int) cuda.Gathered {
	t := cuda.Gathered{}
	n := whole.Bytes / members
	for i := range members {
		t.Out = append(t.Out, cuda.Span{P: whole.P + cuda.Ptr(i*n), Bytes: n})
	}
	t.Mine = t.Out[me]
	return t
}

// fill gives the member's part its data and spoils the others, and returns what all must become.
func (b *bench) fill(t cuda.Gathered, me int, d *rand.Rand) ([][]byte, error) {
	var all [][]byte
	for i, out := range t.Out {
		x := elements(d, dtype.Int64, (out.Bytes+7)/8)[:out.Bytes]
		all = append(all, x)
		now := x
		if i != me {
			now = bytes.Repeat([]byte{0xff}, len(x))
		}
		if err := b.dev.Upload(out.P, now); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// inWindows: tensors of all sizes at once, some of them in no window, some with parts of different lengths.
func inWindows(ctx context.Context, r *Rank) error {
	b, err := newBench(ctx, r)
	if err != nil {
		return err
	}
	n, me := r.Size(), r.Rank()
	whole, err := b.window(ctx, b.world, 96<<20, true)
	if err != nil {
		return err
	}
	if _, err := b.window(ctx, b.world, 1<<20, true); err != nil { // a second, as of another program
		return err
	}
	apart, err := b.blank(8000 * n)
	if err != nil {
		return err
	}
	for round := range 4 {
		at := whole.P
		var tensors []cuda.Gathered
		var got []cuda.Span
		for _, size := range []int{16, 8192, 48, 1 << 20, 65536 + 16, 4 << 20} {
			tensors = append(tensors, inPlace(cuda.Span{P: at, Bytes: size * n}, me, n))
			at += cuda.Ptr(size*n+round*4096+63) / 64 * 64
		}
		byEngine := 0
		for _, t := range tensors {
			if (&binding{Rank: r, communicator: r.find(b.world)}).windowOf(t) != r.find(b.world).handle {
				byEngine++
			}
		}
		if able := r.lib.memAlloc != 0 && os.Getenv(WindowsVar) != "0"; able && byEngine != len(tensors) {
			return fmt.Errorf("%d of %d tensors are seen in the window", byEngine, len(tensors))
		}
		uneven := cuda.Gathered{}
		for i := range n {
			uneven.Out = append(uneven.Out, cuda.Span{P: at, Bytes: 8 * (1000 + i)})
			at += cuda.Ptr(8 * (1000 + i))
		}
		uneven.Mine = uneven.Out[me]
		tensors = append(tensors, uneven, inPlace(apart, me, n))
		d := rand.New(rand.NewPCG(uint64(round), 9))
		var want [][]byte
		for _, t := range tensors {
			all, err := b.fill(t, me, d)
			if err != nil {
				return err
			}
			got, want = append(got, t.Out...), append(want, all...)
		}
		w, err := r.AllGatherOn(b.s, b.world, "windows", tensors...)
		if err := b.check(ctx, fmt.Sprintf("round %d", round), w, err, got, want, dtype.Int64); err != nil {
			return err
		}
	}
	return r.CloseWindow(whole.P)
}

// windowsInAGraph replays gathers over data that changes, each with a sum beside it.
func windowsInAGraph(ctx context.Context, r *Rank) error {
	b, err := newBench(ctx, r)
	if err != nil {
		return err
	}
	n, me := r.Size(), r.Rank()
	whole, err := b.window(ctx, b.world, 48<<20, true)
	if err != nil {
		return err
	}
	var tensors []cuda.Gathered
	var got []cuda.Span
	for k, size := range []int{4096, 1 << 20, 3 << 20} {
		tensors = append(tensors, inPlace(cuda.Span{P: whole.P + cuda.Ptr(k*16<<20), Bytes: size * n}, me, n))
		got = append(got, tensors[k].Out...)
	}
	x, err := b.blank(4096)
	if err != nil {
		return err
	}
	gather, err := r.AllGatherOn(b.s, b.world, "gather", tensors...)
	if err != nil {
		return err
	}
	sum, err := r.AllReduceOn(b.s, b.world, "sum", dtype.Float32, comm.Sum, cuda.Reduced{In: x, Out: x})
	if err != nil {
		return err
	}
	if err := errors.Join(gather(), sum(), gather(), r.Sync(ctx, b.s)); err != nil {
		return err
	}
	graph, err := b.s.Capture(func() error { return errors.Join(gather(), sum()) })
	if err != nil {
		return err
	}
	for round := range 30 {
		d := rand.New(rand.NewPCG(uint64(round), 11))
		var want [][]byte
		for _, t := range tensors {
			all, err := b.fill(t, me, d)
			if err != nil {
				return err
			}
			want = append(want, all...)
		}
		if err := errors.Join(b.s.Launch(graph), r.Sync(ctx, b.s)); err != nil {
			return err
		}
		if err := b.compare(fmt.Sprintf("replay %d", round), got, want, dtype.Int64); err != nil {
			return err
		}
	}
	return nil
}
