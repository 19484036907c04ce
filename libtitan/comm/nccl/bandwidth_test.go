package nccl

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
)

// BenchmarkBandwidth measures the collectives among 2, 4 and 8 GPUs by size, beside the same calls of NCCL without what
// this package adds. GB/s is bus bandwidth, as nccl-tests counts: what each GPU must send of the whole buffer, over time.
func BenchmarkBandwidth(b *testing.B) {
	for size := 2; size <= 8; size *= 2 {
		b.Run(fmt.Sprintf("%d GPUs", size), func(b *testing.B) { printed(b, "bandwidth", size) })
	}
}

// BenchmarkHost measures what ranks say to each other from the host, whose long bodies go through the device.
func BenchmarkHost(b *testing.B) { printed(b, "host", 2) }

// printed runs a case that prints what it measures.
func printed(b *testing.B, name string, size int) {
	for range b.N {
		errs, _, out := job(b, name, size)
		for _, err := range errs {
			if err != "" {
				b.Fatal(err, out)
			}
		}
		fmt.Print("\n", out) // a benchmark's log is cut after ten lines
	}
}

func onTheHost(ctx context.Context, r *Rank) error {
	err := commtest.Measure(ctx, r, os.Stdout)
	if r.Rank() != 0 {
		return nil
	}
	return err
}

// measured is a collective over a buffer of bytes, and the share of it that a GPU sends.
type measured struct {
	name  string
	share float64
	bind  func(whole cuda.Span) (cuda.Work, error)
}

func bandwidth(ctx context.Context, r *Rank) error {
	const most = 1 << 30
	b, err := newBench(ctx, r)
	if err != nil {
		return err
	}
	whole, err := b.window(ctx, b.world, most, true)
	if err != nil {
		return err
	}
	plain, err := b.dev.Alloc(most)
	if err != nil {
		return err
	}
	n, me := r.Size(), r.Rank()
	part := float64(n-1) / float64(n)
	list := []measured{
		{"all_gather", part, func(x cuda.Span) (cuda.Work, error) {
			return r.AllGatherOn(b.s, b.world, "x", inPlace(cuda.Span{P: plain, Bytes: x.Bytes}, me, n))
		}},
		{"all_gather in a window", part, func(x cuda.Span) (cuda.Work, error) {
			return r.AllGatherOn(b.s, b.world, "x", inPlace(x, me, n))
		}},
		{"reduce_scatter float32", part, func(x cuda.Span) (cuda.Work, error) {
			t := inPlace(cuda.Span{P: plain, Bytes: x.Bytes}, me, n)
			return r.ReduceScatterOn(b.s, b.world, "x", dtype.Float32, comm.Sum, cuda.Scattered{Pieces: t.Out, Out: t.Mine})
		}},
		{"all_reduce float32", 2 * part, func(x cuda.Span) (cuda.Work, error) {
			t := cuda.Span{P: plain, Bytes: x.Bytes}
			return r.AllReduceOn(b.s, b.world, "x", dtype.Float32, comm.Sum, cuda.Reduced{In: t, Out: t})
		}},
	}
	for _, m := range list {
		for bytes := 1 << 20; bytes <= most; bytes *= 4 {
			w, err := m.bind(cuda.Span{P: whole.P, Bytes: bytes})
			if err != nil {
				return err
			}
			ours, err := b.time(ctx, w)
			if err != nil {
				return err
			}
			bare, err := b.time(ctx, b.bare(m.name, plain, whole.P, bytes))
			if err != nil {
				return err
			}
			if me == 0 {
				gbs := func(d time.Duration) float64 { return float64(bytes) * m.share / d.Seconds() / 1e9 }
				fmt.Printf("%-24s %5d MiB  %9v  %6.1f GB/s   bare %9v  %6.1f GB/s\n", m.name, bytes>>20, ours, gbs(ours), bare, gbs(bare))
			}
		}
	}
	return nil
}

// bare is the same call of NCCL alone.
func (b *bench) bare(name string, plain, window cuda.Ptr, bytes int) cuda.Work {
	n, me := b.Size(), b.Rank.Rank()
	group, part := b.find(b.world).handle, bytes/n
	in := func(p cuda.Ptr) uintptr { return uintptr(p) + uintptr(me*part) }
	const float, sum = 7, 0
	c := ncclCall{"ncclAllGather", b.lib.allGather, []uintptr{in(plain), uintptr(plain), uintptr(part), bytesType, group, b.s.Handle()}}
	switch name {
	case "all_gather in a window":
		at := inPlace(cuda.Span{P: window, Bytes: bytes}, me, n)
		handle := (&binding{Rank: b.Rank, communicator: b.find(b.world)}).windowOf(at)
		c.args = []uintptr{in(window), uintptr(window), uintptr(part), bytesType, handle, b.s.Handle()}
	case "reduce_scatter float32":
		c = ncclCall{"ncclReduceScatter", b.lib.reduceScatter, []uintptr{uintptr(plain), in(plain), uintptr(part / 4), float, sum, group, b.s.Handle()}}
	case "all_reduce float32":
		c = ncclCall{"ncclAllReduce", b.lib.allReduce, []uintptr{uintptr(plain), uintptr(plain), uintptr(bytes / 4), float, sum, group, b.s.Handle()}}
	}
	return func() error { return b.lib.check(c.name, call(c.fn, c.args...)) }
}

// time is how long a work takes among many, after as many.
func (b *bench) time(ctx context.Context, w cuda.Work) (time.Duration, error) {
	const times = 20
	var took time.Duration
	for range 2 {
		began := time.Now()
		for range times {
			if err := w(); err != nil {
				return 0, err
			}
		}
		if err := b.Sync(ctx, b.s); err != nil {
			return 0, err
		}
		took = time.Since(began) / times
	}
	return took, nil
}
