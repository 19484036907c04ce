package comm

import (
	"fmt"
	"strconv"
	"strings"

	"titan/libtitan/exit"
)

// Launch is what a launcher told this process about its place in a job.
type Launch struct {
	By        string // "mpirun", "torchrun", "srun"; "" where nothing launched it
	Rank      int
	Size      int // ranks of the job
	LocalRank int // rank among those of this machine
}

// launchers are the variables that each sets, the nearest to the process first: mpirun and torchrun may run
// inside a Slurm job. srun's step says that srun itself started the process, and not the job's batch script.
var launchers = []struct{ by, rank, size, local, also string }{
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", ""},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"},
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID"},
}

// Launched reads the variables of Open MPI, torchrun and Slurm.
func Launched(getenv func(string) string) (Launch, error) {
	var first Launch
	for _, l := range launchers {
		names := []string{l.rank, l.size, l.local}
		if l.also != "" {
			names = append(names, l.also)
		}
		var missing []string
		for _, n := range names {
			if getenv(n) == "" {
				missing = append(missing, n)
			}
		}
		switch {
		case len(missing) == len(names), len(missing) >= 3 && l.by == "torchrun" && getenv(l.also) != "":
			continue // MASTER_ADDR alone tells Slurm's ranks too where to meet
		case l.by == "srun" && (first.By != "" || getenv(l.also) == ""):
			continue // a batch script, or what it launched
		case missing != nil:
			return Launch{}, exit.Usage.Errorf("half of %s's variables are set: %s missing (unset the others to run without a launcher)",
				l.by, strings.Join(missing, ", "))
		}
		got, err := read(getenv, l.by, l.rank, l.size, l.local)
		if err != nil {
			return Launch{}, err
		}
		if first.By != "" && (first.Rank != got.Rank || first.Size != got.Size) {
			return Launch{}, exit.Usage.Errorf("%s says rank %d of %d, %s says rank %d of %d: start the ranks with one of them",
				first.By, first.Rank, first.Size, got.By, got.Rank, got.Size)
		}
		if first.By == "" {
			first = got
		}
	}
	return first, nil
}

// read parses the variables of one launcher.
func read(getenv func(string) string, by, rank, size, local string) (Launch, error) {
	l := Launch{By: by}
	for _, v := range []struct {
		name string
		to   *int
	}{{rank, &l.Rank}, {size, &l.Size}, {local, &l.LocalRank}} {
		n, err := strconv.Atoi(getenv(v.name))
		if err != nil || n < 0 {
			return Launch{}, exit.Usage.Errorf("%s=%q: %s's variable is no number", v.name, getenv(v.name), by)
		}
		*v.to = n
	}
	if l.Rank >= l.Size || l.LocalRank > l.Rank {
		return Launch{}, exit.Usage.Errorf("%s: there is no rank %d of %d with local rank %d", by, l.Rank, l.Size, l.LocalRank)
	}
	return l, nil
}

func (l Launch) String() string {
	return fmt.Sprintf("rank %d of %d", l.Rank, l.Size)
}
