package local

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
)

func TestRingOfMessagesAndSums(t *testing.T) {
	err := Run(context.Background(), 4, func(ctx context.Context, c comm.Comm) error {
		next, prev := (c.Rank()+1)%4, (c.Rank()+3)%4
		for i := range 100 {
			if err := c.Send(ctx, next, "ring", []byte{byte(c.Rank()), byte(i)}); err != nil {
				return err
			}
			got := make([]byte, 2)
			if err := c.Recv(ctx, prev, "ring", got); err != nil {
				return err
			}
			if want := []byte{byte(prev), byte(i)}; string(got) != string(want) {
				return fmt.Errorf("got %v, want %v", got, want)
			}
			sum := []float64{float64(c.Rank()), float64(i)}
			if err := c.Sum(ctx, sum); err != nil {
				return err
			}
			if sum[0] != 6 || sum[1] != float64(4*i) {
				return fmt.Errorf("sum %v", sum)
			}
		}
		return c.Barrier(ctx)
	})
	require.NoError(t, err)
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

func TestLengthsMustAgree(t *testing.T) {
	err := Run(context.Background(), 2, func(ctx context.Context, c comm.Comm) error {
		if c.Rank() == 0 {
			return c.Send(ctx, 1, "x", make([]byte, 3))
		}
		return c.Recv(ctx, 0, "x", make([]byte, 4))
	})
	require.ErrorContains(t, err, "3 bytes came, 4 were expected")
}
