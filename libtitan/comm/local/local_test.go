package local

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
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

func BenchmarkCollectives(b *testing.B) {
	for _, size := range []int{2, 4} {
		var table strings.Builder
		require.NoError(b, Run(context.Background(), size, func(ctx context.Context, c comm.Comm) error {
			return commtest.Measure(ctx, c, &table)
		}))
		b.Logf("\n%s", table.String())
	}
}
