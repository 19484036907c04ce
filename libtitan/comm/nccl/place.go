package nccl

import (
	"cmp"
	"hash/fnv"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
)

// FolderVar names the private folder in which ranks of one machine meet, each at a socket of its own. [Start] sets it.
const FolderVar = "TITAN_RANKS_DIR"

// place is where the ranks of a job meet: in a folder, or at rank 0's address.
type place struct {
	comm.Launch
	folder  string
	address string // host:port of rank 0
	job     string // what tells this job's ranks from another's
}

// placeOf finds the place from the launcher's variables.
func placeOf(getenv func(string) string) (place, error) {
	l, err := comm.Launched(getenv)
	if err != nil {
		return place{}, err
	}
	p := place{Launch: l, folder: getenv(FolderVar)}
	switch {
	case l.By == "":
		return p, exit.Usage.Errorf("no launcher started this process: start the ranks with torchrun --nproc-per-node N --no-python, srun or mpirun")
	case p.folder != "":
		return p, nil
	}
	p.job = cmp.Or(getenv("TORCHELASTIC_RUN_ID"), getenv("SLURM_JOB_ID")+"."+getenv("SLURM_STEP_ID"), getenv("PMIX_NAMESPACE"))
	if p.job == "." {
		p.job = getenv("PMIX_NAMESPACE")
	}
	host, err := p.host(getenv)
	if err != nil {
		return p, err
	}
	port, err := p.port(getenv)
	p.address = net.JoinHostPort(host, strconv.Itoa(port))
	return p, err
}

// host is where rank 0 runs: as MASTER_ADDR says, else the first of Slurm's nodes, else this machine if all ranks do.
func (p place) host(getenv func(string) string) (string, error) {
	local, _ := strconv.Atoi(getenv("OMPI_COMM_WORLD_LOCAL_SIZE"))
	switch {
	case getenv("MASTER_ADDR") != "":
		return getenv("MASTER_ADDR"), nil
	case p.By == "srun":
		if node := firstNode(cmp.Or(getenv("SLURM_STEP_NODELIST"), getenv("SLURM_NODELIST"))); node != "" {
			return node, nil
		}
	case local == p.Size:
		return "127.0.0.1", nil
	}
	return "", exit.Usage.Errorf("%s started %v: where is rank 0? Set MASTER_ADDR to its host for all ranks", p.By, p.Launch)
}

// port is the one after MASTER_PORT, at which torchrun itself listens, else one made of the job's number.
func (p place) port(getenv func(string) string) (int, error) {
	if text := getenv("MASTER_PORT"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 || n > 65534 {
			return 0, exit.Usage.Errorf("MASTER_PORT=%q: no port below 65535", text)
		}
		return n + 1, nil
	}
	h := fnv.New32()
	h.Write([]byte(p.job))
	return 20000 + int(h.Sum32()%10000), nil
}

// firstNode is the first host of a list in Slurm's form: "gpu[03-07,9],login" begins with gpu03.
func firstNode(list string) string {
	head, rest, ranged := strings.Cut(list, "[")
	if at := strings.IndexByte(head, ','); at >= 0 || !ranged {
		if at >= 0 {
			head = head[:at]
		}
		return head
	}
	return head + rest[:max(0, strings.IndexAny(rest, ",-]"))]
}

// socket is the address of a rank in the folder.
func (p place) socket(rank int) string { return filepath.Join(p.folder, "rank-"+strconv.Itoa(rank)) }
