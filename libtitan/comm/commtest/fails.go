package commtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"titan/libtitan/comm"
	"titan/libtitan/dtype"
)

var failures = []Case{
	{Name: "another name", Sizes: []int{3}, Rank: func(ctx context.Context, c comm.Comm) error {
		names := []string{"layers.0.wq", "layers.0.wk", "layers.0.wq"}
		return lasting(ctx, c, c.AllGather(ctx, comm.World(3), names[c.Rank()], comm.Gathered{Out: make([][]byte, 3)}))
	}, Errors: all(3, `"all_gather layers.0.w`)},

	{Name: "another op", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 0 {
			return c.Barrier(ctx)
		}
		return c.Sum(ctx, make([]float64, 3))
	}, Errors: all(2, `is in another call: "`)},

	{Name: "another order", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		for i := range 2 {
			if err := reduceNamed(ctx, c, fmt.Sprint("loss", i^c.Rank()), 16); err != nil {
				return err
			}
		}
		return nil
	}, Errors: all(2, "is in another call")},

	{Name: "other bytes", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		return reduceNamed(ctx, c, "loss", 16+4*c.Rank())
	}, Errors: all(2, `all_reduce loss (no. 1 in world [0 1])`)},

	{Name: "other sizes", Sizes: []int{3}, Rank: func(ctx context.Context, c comm.Comm) error {
		out := [][]byte{make([]byte, 4), make([]byte, 4), make([]byte, 4)}
		if c.Rank() == 0 {
			out[1] = make([]byte, 5)
		}
		if err := c.AllGather(ctx, comm.World(3), "w", comm.Gathered{Mine: make([]byte, 4), Out: out}); err != nil {
			return err
		}
		return c.Barrier(ctx)
	}, Errors: all(3, "rank 0: all_gather w (no. 1 in world [0 1 2]): rank 1 gives 4 bytes, 5 were expected")},

	{Name: "late", Sizes: []int{4}, Timeout: time.Second, Rank: func(ctx context.Context, c comm.Comm) error {
		g := comm.Group{Name: "dp_shard", Ranks: []int{2, 3}}
		if err := c.Barrier(ctx); err != nil {
			return err
		}
		switch c.Rank() {
		case 2:
			time.Sleep(1500 * time.Millisecond)
		case 0, 1:
			time.Sleep(400 * time.Millisecond) // so that rank 3 is the first to wait too long
			return c.Barrier(ctx)
		}
		out := [][]byte{make([]byte, 4), make([]byte, 4)}
		return lasting(ctx, c, c.AllGather(ctx, g, "layers.0.attention.wq.weight", comm.Gathered{Mine: make([]byte, 4), Out: out}))
	}, Errors: all(4, "rank 3: all_gather layers.0.attention.wq.weight (no. 1 in dp_shard [2 3]): rank 2 has not come after 1s")},

	{Name: "late message", Sizes: []int{2}, Timeout: time.Second, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 0 {
			time.Sleep(1500 * time.Millisecond)
			return c.Send(ctx, 1, "act", nil)
		}
		return c.Recv(ctx, 0, "act", nil)
	}, Errors: all(2, "rank 1: recv act: nothing from rank 0 after 1s")},

	{Name: "gone", Sizes: []int{3}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 1 {
			return nil
		}
		return c.Recv(ctx, 1, "act", nil)
	}, Errors: []string{"recv act: rank 1 has ended without sending it", "", "recv act: rank 1 has ended without sending it"}},

	{Name: "broken", Sizes: []int{3}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 2 {
			return errors.New("the disk is full")
		}
		return lasting(ctx, c, c.Barrier(ctx))
	}, Errors: all(3, "the disk is full")},

	{Name: "panic", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 1 {
			panic("no such layer")
		}
		return c.Barrier(ctx)
	}, Errors: all(2, "rank 1: bug: no such layer (please report this)")},

	{Name: "nil pointer", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 1 {
			var none *Case
			return errors.New(none.Name)
		}
		return c.Barrier(ctx)
	}, Errors: all(2, "rank 1: bug: runtime error: invalid memory address or nil pointer dereference (please report this)")},

	{Name: "cancelled", Sizes: []int{3}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 2 {
			return c.Recv(ctx, 1, "never", nil)
		}
		if c.Rank() == 0 {
			inner, cancel := context.WithCancel(ctx)
			time.AfterFunc(100*time.Millisecond, cancel)
			ctx = inner
		}
		return c.Recv(ctx, 2, "never", nil)
	}, Errors: all(3, "context canceled")},

	{Name: "other length", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 0 {
			if err := c.Send(ctx, 1, "act", make([]byte, 3)); err != nil {
				return err
			}
			return c.Barrier(ctx)
		}
		return c.Recv(ctx, 0, "act", make([]byte, 4))
	}, Errors: all(2, "recv act from rank 0: 3 bytes came, 4 were expected")},

	{Name: "no member", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 0 {
			return c.Barrier(ctx)
		}
		g := comm.Group{Name: "tp", Ranks: []int{0}}
		return c.AllReduce(ctx, g, "loss", dtype.Float32, comm.Sum, nil)
	}, Errors: all(2, "rank 1: all_reduce loss (no. 1 in tp [0]): this rank is no member")},

	{Name: "no such rank", Sizes: []int{1}, Rank: func(ctx context.Context, c comm.Comm) error {
		return c.Send(ctx, 1, "act", nil)
	}, Errors: all(1, "rank 0: send act: no rank 1 of 1")},

	{Name: "no such reduction", Sizes: []int{1}, Rank: func(ctx context.Context, c comm.Comm) error {
		return c.AllReduce(ctx, comm.World(1), "flags", dtype.Bool, comm.Sum, []byte{1})
	}, Errors: all(1, "no reduction of bool (float32, float64, bfloat16, int64)")},

	{Name: "half an element", Sizes: []int{1}, Rank: func(ctx context.Context, c comm.Comm) error {
		return reduceNamed(ctx, c, "loss", 6)
	}, Errors: all(1, "6 bytes are no whole number of float32")},

	{Name: "few buffers", Sizes: []int{2}, Rank: func(ctx context.Context, c comm.Comm) error {
		return c.AllToAll(ctx, comm.World(2), "tokens", nil, make([][]byte, 2))
	}, Errors: all(2, "all_to_all tokens (no. 1 in world [0 1]): 0 buffers for 2 members")},
}

func all(n int, text string) []string {
	errs := make([]string, n)
	for i := range errs {
		errs[i] = text
	}
	return errs
}

func reduceNamed(ctx context.Context, c comm.Comm, what string, bytes int) error {
	return c.AllReduce(ctx, comm.World(c.Size()), what, dtype.Float32, comm.Sum, make([]byte, bytes))
}

// lasting checks that a call after a failure fails with the same text.
func lasting(ctx context.Context, c comm.Comm, err error) error {
	if err == nil {
		return errors.New("no error")
	}
	if again := c.Barrier(ctx); again == nil || again.Error() != err.Error() {
		return fmt.Errorf("%v after %v", again, err)
	}
	return err
}
