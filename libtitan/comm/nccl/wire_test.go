package nccl

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
	"titan/libtitan/comm/commtest"
	"titan/libtitan/exit"
)

// ranks plays a case with ranks that meet at a place, all in this process and all bodies inline: what is GPUs' alone is
// tested in gpu_test.go.
func ranks(c commtest.Case, size int, at place) []string {
	errs := make([]string, size)
	o := comm.Options{Timeout: c.Timeout, Log: slog.New(slog.DiscardHandler)}
	if o.Timeout == 0 {
		o.Timeout = comm.DefaultTimeout
	}
	var all sync.WaitGroup
	for r := range size {
		all.Go(func() {
			p := at
			p.Launch = comm.Launch{By: "test", Rank: r, Size: size, LocalRank: r}
			err := runAt(context.Background(), p, o, maxFrame/2, func(ctx context.Context, _ *wire, k comm.Comm) error { return c.Rank(ctx, k) })
			if err != nil {
				errs[r] = err.Error()
			}
		})
	}
	all.Wait()
	return errs
}

// folder is short: a socket's path has 107 bytes at most.
func folder(t *testing.T) string {
	dir, err := os.MkdirTemp("", "ranks")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func TestConformanceOfHeads(t *testing.T) {
	commtest.Run(t, func(t *testing.T, c commtest.Case, size int) []string {
		return ranks(c, size, place{folder: folder(t)})
	})
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func TestMeetingAtAnAddress(t *testing.T) {
	works, err := commtest.Find("works")
	require.NoError(t, err)
	at := place{address: freeAddress(t), job: "17.0"}
	done := make(chan struct{})
	go func() { // another job's rank and a stranger knock meanwhile
		defer close(done)
		for range 20 {
			if c, err := net.Dial("tcp", at.address); err == nil {
				_, _ = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
				q := &peer{conn: c}
				_ = q.send([]byte("titan\n18.0\n4\n1\n127.0.0.1:1"))
				c.Close()
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	for r, e := range ranks(works, 4, at) {
		require.Empty(t, e, "rank %d", r)
	}
	<-done
}

func TestRankThatDoesNotCome(t *testing.T) {
	dir := folder(t)
	p := place{Launch: comm.Launch{By: "test", Rank: 0, Size: 3}, folder: dir}
	_, err := meet(t.Context(), p, 100*time.Millisecond)
	require.ErrorContains(t, err, "rank 0 of 3: ranks [1 2] have not come to "+dir+" after 100ms")
	require.Equal(t, int(exit.Lost), exit.Code(err))
	p.Rank, p.folder = 2, filepath.Join(dir, "none")
	_, err = meet(t.Context(), p, 100*time.Millisecond)
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = meet(ctx, p, time.Minute)
	require.Error(t, err)
}

// A process that ends without a word closes its sockets.
func TestRankThatIsGone(t *testing.T) {
	c := commtest.Case{Rank: func(ctx context.Context, c comm.Comm) error { return c.Barrier(ctx) }}
	at := place{folder: folder(t)}
	gone := make(chan error)
	go func() {
		p := at
		p.Launch = comm.Launch{Rank: 1, Size: 2}
		peers, err := meet(context.Background(), p, time.Minute)
		if err == nil {
			err = peers[0].conn.Close()
		}
		gone <- err
	}()
	p := at
	p.Launch = comm.Launch{Rank: 0, Size: 2}
	err := runAt(t.Context(), p, comm.Options{Timeout: time.Minute, Log: slog.New(slog.DiscardHandler)}, maxFrame/2,
		func(ctx context.Context, _ *wire, k comm.Comm) error { return c.Rank(ctx, k) })
	require.NoError(t, <-gone)
	require.ErrorContains(t, err, "rank 0: rank 1 is gone: its process ended without a word")
	require.Equal(t, int(exit.Lost), exit.Code(err))
}

func TestPlace(t *testing.T) {
	torch := map[string]string{"RANK": "3", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "n0", "MASTER_PORT": "29500"}
	slurm := map[string]string{"SLURM_PROCID": "2", "SLURM_STEP_NUM_TASKS": "4", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "77", "SLURM_STEP_NODELIST": "gpu[03-04]"}
	open := map[string]string{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2", "PMIX_NAMESPACE": "5"}
	with := func(env map[string]string, more ...string) map[string]string {
		all := map[string]string{}
		for k, v := range env {
			all[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			all[more[i]] = more[i+1]
		}
		return all
	}
	for name, c := range map[string]struct {
		env                map[string]string
		folder, host, port string // port: "" is any
		err                string
	}{
		"torchrun":          {env: torch, host: "n0", port: "29501"},
		"our own":           {env: with(torch, FolderVar, "/x"), folder: "/x"},
		"slurm":             {env: slurm, host: "gpu03"},
		"slurm with a host": {env: with(slurm, "MASTER_ADDR", "m", "MASTER_PORT", "100"), host: "m", port: "101"},
		"mpirun":            {env: open, host: "127.0.0.1"},
		"mpirun, two hosts": {env: with(open, "OMPI_COMM_WORLD_LOCAL_RANK", "0", "OMPI_COMM_WORLD_LOCAL_SIZE", "1"), err: "mpirun started rank 1 of 2: where is rank 0? Set MASTER_ADDR"},
		"nobody":            {env: nil, err: "no launcher started this process"},
		"bad port":          {env: with(torch, "MASTER_PORT", "65535"), err: `MASTER_PORT="65535"`},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := placeOf(func(k string) string { return c.env[k] })
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				require.Equal(t, int(exit.Usage), exit.Code(err))
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.folder, p.folder)
			if c.folder != "" {
				return
			}
			host, port, err := net.SplitHostPort(p.address)
			require.NoError(t, err)
			require.Equal(t, c.host, host)
			n, err := strconv.Atoi(port)
			require.NoError(t, err)
			require.Greater(t, n, 0)
			if c.port != "" {
				require.Equal(t, c.port, port)
			}
		})
	}
}

func TestFirstNode(t *testing.T) {
	for list, want := range map[string]string{
		"gpu03": "gpu03", "gpu[03-07,9],login": "gpu03", "a,b": "a", "n[1,5]": "n1", "n[12]": "n12", "a,b[1-2]": "a", "": "", "n[": "n",
	} {
		require.Equal(t, want, firstNode(list), list)
	}
}

func TestRoundsShareNoRank(t *testing.T) {
	g := func(name string, ranks ...int) comm.Group { return comm.Group{Name: name, Ranks: ranks} }
	asked := []comm.Group{g("tp", 0, 1), g("dp", 0, 2), g("dp", 1, 3), g("tp", 2, 3), g("tp", 0, 1), g("pp", 0, 3)}
	seen := map[string]bool{}
	for _, round := range roundsOf(asked) {
		taken := map[int]bool{}
		for _, g := range round {
			require.False(t, seen[keyOf(g)])
			seen[keyOf(g)] = true
			for _, r := range g.Ranks {
				require.False(t, taken[r], "rank %d is twice in %v", r, round)
				taken[r] = true
			}
		}
	}
	require.Len(t, seen, 5)
}

func TestGroupThatAMemberDoesNotKnow(t *testing.T) {
	tp := comm.Group{Name: "tp", Ranks: []int{0, 1}}
	require.NoError(t, agree([][]comm.Group{{tp}, {tp}}))
	require.ErrorContains(t, agree([][]comm.Group{{tp}, nil}), "rank 0 moves tensors in tp [0 1], rank 1 does not")
	require.ErrorContains(t, agree([][]comm.Group{{tp}}), "rank 1 does not")
}
