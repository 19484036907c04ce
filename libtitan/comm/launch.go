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

// launcher is the variables that one sets; localSize, the ranks of this machine, is not looked for where it has no name.
type launcher struct{ by, rank, size, local, localSize, also string }

// launchers are in order, the nearest to the process first: mpirun and torchrun may run inside a Slurm job. srun's step
// says that srun itself started the process, and not the job's batch script.
var launchers = []launcher{
	{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", ""},
	{"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR"},
	{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "", "SLURM_STEP_ID"},
}

// maxSize is the most ranks that a mesh has.
const maxSize = 1 << 20

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
		got, err := l.read(getenv)
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

// read parses the variables, each of which bounds the next.
func (v launcher) read(getenv func(string) string) (l Launch, err error) {
	number := func(name string, least, most int, since string) int {
		n, bad := strconv.Atoi(getenv(name))
		if err == nil && (bad != nil || n < least || n > most) {
			if since != "" {
				since = fmt.Sprintf(", since %s is %s", since, getenv(since))
			}
			err = exit.Usage.Errorf("%s=%q: %s's variable must be a number from %d to %d%s", name, getenv(name), v.by, least, most, since)
		}
		return n
	}
	l.By = v.by
	l.Size = number(v.size, 1, maxSize, "")
	l.Rank = number(v.rank, 0, l.Size-1, v.size)
	most, since := l.Rank, v.rank
	if getenv(v.localSize) != "" {
		if n := number(v.localSize, 1, l.Size, v.size); n <= most {
			most, since = n-1, v.localSize
		}
	}
	l.LocalRank = number(v.local, 0, most, since)
	return l, err
}

func (l Launch) String() string {
	return fmt.Sprintf("rank %d of %d", l.Rank, l.Size)
}
