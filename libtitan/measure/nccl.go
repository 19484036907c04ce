package measure

import (
	"context"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cuda"
	"titan/libtitan/dtype"
	"titan/libtitan/estimate"
)

// most is the largest collective that is measured, bytes.
const most = 1 << 30

// gpuCollectives measures those of NCCL over all ranks.
func gpuCollectives(ctx context.Context, d *cuda.Device, r *nccl.Rank) (list []estimate.CollectiveTime, err error) {
	s, err := d.NewStream(false)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	g := comm.World(r.Size())
	if err := r.Open(ctx, []comm.Group{g}); err != nil {
		return nil, err
	}
	p, err := d.Alloc(most)
	if err != nil {
		return nil, err
	}
	defer d.Free(p)
	if err := s.Zero(p, most); err != nil { // sums stay finite
		return nil, err
	}
	for bytes := 64 << 10; bytes <= most; bytes *= 4 {
		works, err := collectivesOf(r, s, g, p, bytes)
		if err != nil {
			return nil, err
		}
		for _, name := range []string{"all_gather", "reduce_scatter", "all_reduce", "send"} {
			if works[name] == nil {
				continue
			}
			took, err := repeated(ctx, r, s, works[name], bytes)
			if err != nil {
				return nil, err
			}
			list = append(list, estimate.CollectiveTime{Name: name, Ranks: r.Size(), Bytes: bytes, Seconds: digits(took)})
		}
	}
	return list, nil
}

// collectivesOf binds collectives of bytes at p; sends go between the first two ranks.
func collectivesOf(r *nccl.Rank, s *cuda.Stream, g comm.Group, p cuda.Ptr, bytes int) (map[string]cuda.Work, error) {
	n := r.Size()
	piece := bytes / n / 256 * 256
	pieces := make([]cuda.Span, n)
	for i := range pieces {
		pieces[i] = cuda.Span{P: p + cuda.Ptr(i*piece), Bytes: piece}
	}
	mine, all := pieces[r.Rank()], cuda.Span{P: p, Bytes: piece * n}
	works := map[string]cuda.Work{}
	var err error
	if works["all_gather"], err = r.AllGatherOn(s, g, "x", cuda.Gathered{Mine: mine, Out: pieces}); err != nil {
		return nil, err
	}
	if works["reduce_scatter"], err = r.ReduceScatterOn(s, g, "x", dtype.Float32, comm.Sum, cuda.Scattered{Pieces: pieces, Out: mine}); err != nil {
		return nil, err
	}
	if works["all_reduce"], err = r.AllReduceOn(s, g, "x", dtype.Float32, comm.Sum, cuda.Reduced{In: all, Out: all}); err != nil {
		return nil, err
	}
	switch {
	case n > 2:
	case r.Rank() == 0:
		works["send"], err = r.SendOn(s, g, "x", 1, all)
	default:
		works["send"], err = r.RecvOn(s, g, "x", 0, all)
	}
	return works, err
}

// repeated is the seconds of a work, of many one after the other.
func repeated(ctx context.Context, r *nccl.Rank, s *cuda.Stream, w cuda.Work, bytes int) (float64, error) {
	times := min(50, max(5, most/bytes))
	var took time.Duration
	for range 2 { // the first round connects the ranks
		if err := r.Sync(ctx, s); err != nil {
			return 0, err
		}
		if err := r.Barrier(ctx); err != nil {
			return 0, err
		}
		began := time.Now()
		for range times {
			if err := w(); err != nil {
				return 0, err
			}
		}
		if err := r.Sync(ctx, s); err != nil {
			return 0, err
		}
		took = time.Since(began)
	}
	return took.Seconds() / float64(times), nil
}
