package measure

import (
	"context"
	"math"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/dtype"
	"titan/libtitan/estimate"
)

// localCollectives measures collectives of ranks that are goroutines of this process.
func localCollectives(ctx context.Context, o comm.Options) (all []estimate.CollectiveTime, err error) {
	for _, ranks := range []int{2, 4, 8} {
		err := local.RunWith(ctx, ranks, o, func(ctx context.Context, c comm.Comm) error {
			list, err := hostCollectives(ctx, c)
			if c.Rank() == 0 {
				all = append(all, list...)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// hostCollectives measures those of float32 values in the memory of the host, on all ranks of c.
func hostCollectives(ctx context.Context, c comm.Comm) (list []estimate.CollectiveTime, err error) {
	n, g := c.Size(), comm.World(c.Size())
	for bytes := 16 << 10; bytes <= 16<<20; bytes *= 8 {
		data := make([]byte, bytes)
		pieces := make([][]byte, n)
		for i := range pieces {
			pieces[i] = data[bytes/n*i : bytes/n*(i+1)]
		}
		mine := append([]byte(nil), pieces[c.Rank()]...)
		for _, x := range []struct {
			name string
			do   func() error
		}{
			{"all_gather", func() error { return c.AllGather(ctx, g, "x", comm.Gathered{Mine: mine, Out: pieces}) }},
			{"reduce_scatter", func() error {
				return c.ReduceScatter(ctx, g, "x", dtype.Float32, comm.Sum, comm.Scattered{Pieces: pieces, Out: mine})
			}},
			{"all_reduce", func() error { return c.AllReduce(ctx, g, "x", dtype.Float32, comm.Sum, data) }},
			{"send", func() error {
				if c.Rank() == 0 {
					return c.Send(ctx, 1, "x", data)
				} else if c.Rank() == 1 {
					return c.Recv(ctx, 0, "x", data)
				}
				return nil
			}},
		} {
			if x.name == "send" && n > 2 {
				continue
			}
			s, err := together(ctx, c, x.do)
			if err != nil {
				return nil, err
			}
			list = append(list, estimate.CollectiveTime{Name: x.name, Ranks: n, Bytes: bytes, Seconds: digits(s)})
		}
	}
	return list, nil
}

// together is the seconds of the best of several calls that all ranks make at once.
func together(ctx context.Context, c comm.Comm, do func() error) (best float64, err error) {
	best = math.Inf(1)
	for range 2 * leastTimes {
		if err := c.Barrier(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		if err := do(); err != nil {
			return 0, err
		}
		if err := c.Barrier(ctx); err != nil {
			return 0, err
		}
		best = min(best, time.Since(began).Seconds())
	}
	return best, nil
}
