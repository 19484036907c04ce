package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
	"titan/libtitan/exit"
)

func TestConformance(t *testing.T) {
	commtest.Run(t, func(t *testing.T, c commtest.Case, size int) []string {
		errs := make([]string, size)
		o := comm.Options{Timeout: c.Timeout, Log: slog.New(slog.DiscardHandler)}
		_ = RunWith(context.Background(), size, o, func(ctx context.Context, me comm.Comm) error {
			err := call(ctx, me, c.Rank)
			if err != nil {
				errs[me.Rank()] = err.Error()
			}
			return err
		})
		return errs
	})
}

func TestOneFailureEndsAll(t *testing.T) {
	broken := errors.New("broken")
	err := Run(context.Background(), 3, func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 2 {
			return broken
		}
		return c.Recv(ctx, 2, "never", make([]byte, 1))
	})
	require.ErrorIs(t, err, broken)
}

// When the job is lost each rank logs its last calls, the one that it was in last of all.
func TestLastCallsAreLogged(t *testing.T) {
	var log bytes.Buffer
	o := comm.Options{Timeout: 100 * time.Millisecond, Log: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	err := RunWith(context.Background(), 2, o, func(ctx context.Context, c comm.Comm) error {
		for range 40 {
			if err := c.Sum(ctx, make([]float64, 2)); err != nil {
				return err
			}
		}
		if c.Rank() == 0 {
			return c.Barrier(ctx)
		}
		<-ctx.Done()
		return c.Barrier(ctx)
	})
	require.EqualError(t, err, "rank 0: barrier (no. 41 in world [0 1]): rank 1 has not come after 100ms")
	require.Equal(t, int(exit.Lost), exit.Code(err))
	for _, want := range []string{
		`rank=0 call=10 op=all_reduce what=sum place="no. 10 in world [0 1]" bytes=16 state=done`,
		`rank=0 call=41 op=barrier what="" place="no. 41 in world [0 1]" bytes=0 state="rank 0: barrier`,
		`rank=1 call=41 op=barrier`,
	} {
		require.Contains(t, log.String(), want)
	}
	require.Equal(t, 64, strings.Count(log.String(), "last calls"))
}

func BenchmarkCollectives(b *testing.B) {
	for _, size := range []int{2, 4} {
		var table strings.Builder
		require.NoError(b, Run(context.Background(), size, func(ctx context.Context, c comm.Comm) error {
			return commtest.Measure(ctx, c, &table)
		}))
		b.Logf("\n%s", table.String())
	}
}
