package mpi

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
	"titan/libtitan/exit"
)

// Under mpirun the test binary is a rank: it plays the case of these variables and leaves its error in a file.
const (
	caseVar = "COMMTEST_CASE"
	dirVar  = "COMMTEST_DIR"
)

func TestMain(m *testing.M) {
	if name := os.Getenv(caseVar); name != "" {
		os.Exit(rank(name))
	}
	os.Exit(m.Run())
}

func rank(name string) int {
	c, err := commtest.Find(name)
	switch name {
	case "measure":
		c.Rank = func(ctx context.Context, c comm.Comm) error { return commtest.Measure(ctx, c, os.Stdout) }
		err = nil
	case "killed":
		c.Rank, err = killed, nil
	}
	if err == nil {
		o := comm.Options{Timeout: c.Timeout, Log: slog.New(slog.DiscardHandler)}
		err = Run(context.Background(), o, c.Rank)
	}
	text := ""
	if err != nil {
		text = err.Error()
	}
	l, _ := comm.Launched(os.Getenv) // its error is Run's
	file := filepath.Join(os.Getenv(dirVar), strconv.Itoa(l.Rank))
	if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	waitForAll(os.Getenv(dirVar), l.Size)
	return exit.Code(err)
}

// waitForAll waits, not for ever, until every rank has told its error: mpirun ends the others when the first one fails.
func waitForAll(dir string, size int) {
	for range 500 {
		if told, err := os.ReadDir(dir); err != nil || len(told) >= size {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// mpirun starts this binary as the ranks of a job.
func mpirun(t testing.TB, size int, env ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
		"-n", strconv.Itoa(size), os.Args[0])
	cmd.Env = append(os.Environ(), env...)
	return cmd.CombinedOutput()
}

func needMPI(t *testing.T) {
	if _, err := exec.LookPath("mpirun"); err != nil {
		t.Skip("SKIPPED: no mpirun here, .ci/run installs it: apt-get install openmpi-bin")
	}
}

func TestConformance(t *testing.T) {
	needMPI(t)
	commtest.Run(t, func(t *testing.T, c commtest.Case, size int) []string {
		dir := t.TempDir()
		out, err := mpirun(t, size, caseVar+"="+c.Name, dirVar+"="+dir)
		require.Equal(t, c.Errors == nil, err == nil, "mpirun: %v: %s", err, out)
		errs := make([]string, size)
		for r := range errs {
			text, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(r)))
			require.NoError(t, err, "%s", out)
			errs[r] = string(text)
		}
		return errs
	})
}

// killed ends one process as a lack of memory does.
func killed(ctx context.Context, c comm.Comm) error {
	if err := c.Barrier(ctx); err != nil {
		return err
	}
	if c.Rank() == 1 {
		return syscall.Kill(os.Getpid(), syscall.SIGKILL)
	}
	return c.Barrier(ctx)
}

func TestKilledProcessEndsTheJob(t *testing.T) {
	needMPI(t)
	began := time.Now()
	out, err := mpirun(t, 4, caseVar+"=killed", dirVar+"="+t.TempDir())
	require.Error(t, err)
	require.Contains(t, string(out), "signal 9")
	require.Less(t, time.Since(began), 30*time.Second)
}

func BenchmarkCollectives(b *testing.B) {
	for _, size := range []int{2, 4} {
		out, err := mpirun(b, size, caseVar+"=measure", dirVar+"="+b.TempDir())
		require.NoError(b, err, "%s", out)
		b.Logf("\n%s", out)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{}, "start the ranks with mpirun -n N"},
		{map[string]string{"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "n0"},
			"torchrun started rank 1 of 4, but its ranks cannot join Open MPI: start them with mpirun -n 4"},
		{map[string]string{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "2", "SLURM_STEP_ID": "0"},
			"without PMIx: use srun --mpi=pmix"},
		{map[string]string{"RANK": "1"}, "half of torchrun's variables"},
	} {
		err := Check(func(k string) string { return c.env[k] })
		require.ErrorContains(t, err, c.want)
		require.Equal(t, int(exit.Usage), exit.Code(err))
	}
}
