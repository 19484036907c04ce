package nccl

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// startVar makes the test binary a program that starts its ranks; it says what becomes of rank 2.
const startVar = "START_TEST"

func starter(how string) int {
	err := startedRank(how)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return exit.Code(err)
}

func startedRank(how string) error {
	ctx := context.Background()
	if os.Getenv("RANK") == "" {
		children, err := Start(3, []byte("a manifest"))
		if err != nil {
			return err
		}
		defer children.Wait()
		var stop func()
		ctx, stop = children.With(ctx)
		defer stop()
	} else if in, err := io.ReadAll(os.Stdin); err != nil || string(in) != "a manifest" {
		return fmt.Errorf("stdin: %q, %v", in, err)
	}
	p, err := placeOf(os.Getenv)
	if err != nil {
		return err
	}
	last := p.Rank == 2
	if last && how == "early" {
		return exit.Input.Errorf("no such GPU")
	}
	return runAt(ctx, p, comm.Options{Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)}, maxFrame/2, func(ctx context.Context, _ *wire, c comm.Comm) error {
		sum := []float64{float64(p.Rank)}
		if err := c.Sum(ctx, sum); err != nil {
			return err
		}
		if p.Rank == 0 {
			fmt.Printf("the sum is %v\n", sum[0])
		}
		switch {
		case last && how == "fails":
			return exit.No.Errorf("the loss is not finite")
		case last && how == "killed":
			return syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		return c.Barrier(ctx)
	})
}

func TestStart(t *testing.T) {
	for how, want := range map[string]struct {
		code exit.Kind
		text string
	}{
		"well":   {exit.OK, "the sum is 3\n"},
		"early":  {exit.Input, "rank 0 of 3: rank 2: no such GPU"},
		"fails":  {exit.No, "the loss is not finite"},
		"killed": {exit.Lost, "rank 2( is gone: its process ended without a word|: its process ended: signal: killed)"}, // its peers or its parent see it first
	} {
		t.Run(how, func(t *testing.T) {
			began := time.Now()
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), startVar+"="+how)
			out, err := cmd.CombinedOutput()
			require.Regexp(t, want.text, string(out))
			require.Equal(t, want.code == exit.OK, err == nil, "%v", err)
			require.Equal(t, int(want.code), cmd.ProcessState.ExitCode())
			require.Less(t, time.Since(began), 20*time.Second)
		})
	}
}
