package commtest

import (
	"context"
	"fmt"
	"io"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/dtype"
)

// measured is the size of the tensor that collectives are timed with, in bytes.
const measured = 16 << 20

// Measure writes the best time of each collective over all ranks, one a line, from rank 0.
func Measure(ctx context.Context, c comm.Comm, w io.Writer) error {
	n, g := c.Size(), comm.World(c.Size())
	data := make([]byte, measured) // zeros: sums stay finite
	pieces := make([][]byte, n)
	for i := range pieces {
		pieces[i] = data[measured/n*i : measured/n*(i+1)]
	}
	mine := append([]byte(nil), pieces[c.Rank()]...)
	one := make([]float64, 1)
	for _, m := range []struct {
		name string
		f    func() error
	}{
		{"all_reduce 16 MiB float32", func() error { return c.AllReduce(ctx, g, "grad", dtype.Float32, comm.Sum, data) }},
		{"all_reduce 16 MiB bfloat16", func() error { return c.AllReduce(ctx, g, "grad", dtype.BFloat16, comm.Sum, data) }},
		{"reduce_scatter 16 MiB float32", func() error {
			return c.ReduceScatter(ctx, g, "grad", dtype.Float32, comm.Sum, comm.Scattered{Pieces: pieces, Out: mine})
		}},
		{"all_gather 16 MiB", func() error { return c.AllGather(ctx, g, "weight", comm.Gathered{Mine: mine, Out: pieces}) }},
		{"send 16 MiB round a ring", func() error {
			if err := c.Send(ctx, (c.Rank()+1)%n, "act", data); err != nil {
				return err
			}
			return c.Recv(ctx, (c.Rank()+n-1)%n, "act", data)
		}},
		{"sum of one number", func() error { return c.Sum(ctx, one) }},
		{"barrier", func() error { return c.Barrier(ctx) }},
	} {
		best, sum := time.Hour, time.Duration(0)
		const times = 20
		for range times {
			if err := c.Barrier(ctx); err != nil {
				return err
			}
			began := time.Now()
			if err := m.f(); err != nil {
				return err
			}
			took := time.Since(began)
			best, sum = min(best, took), sum+took
		}
		if c.Rank() == 0 {
			fmt.Fprintf(w, "%d ranks  %-30s best %8.3f ms  mean %8.3f ms\n", n, m.name, best.Seconds()*1e3, sum.Seconds()*1e3/times)
		}
	}
	return nil
}
