package train

import (
	"fmt"
	"os"
	"strings"

	"titan/libtitan/device/cuda"
	"titan/libtitan/device/nvml"
)

// gauge reads how much of its GPU's memory this process takes: by NVML, which counts what CUDA, NCCL and the libraries
// take for themselves too, else by CUDA, which counts what all processes take.
type gauge struct {
	e    *cuda.Engine
	lib  *nvml.Library // nil: CUDA is asked
	gpu  *nvml.Device
	pid  int
	what string // what is read, for people
}

func newGauge(e *cuda.Engine) *gauge {
	g := &gauge{e: e, pid: os.Getpid()}
	why := g.openNVML()
	switch _, own, _ := g.byNVML(); {
	case why != nil:
		g.what = fmt.Sprintf("the whole GPU's, by cuMemGetInfo: %v", why)
	case own:
		g.what = "this process's, by NVML"
	default:
		g.what = "the whole GPU's, by NVML, which does not see processes here"
	}
	return g
}

func (g *gauge) openNVML() error {
	id, err := g.e.BusID()
	if err != nil {
		return err
	}
	lib, err := nvml.Open()
	if err != nil {
		return err
	}
	if g.gpu, err = lib.Find(id); err != nil {
		lib.Close()
		return err
	}
	g.lib = lib
	return nil
}

// read is the memory that is taken, and its share of the device's; zeros where nobody says.
func (g *gauge) read() (bytes int64, share float64) {
	if bytes, _, total := g.byNVML(); total > 0 {
		return bytes, float64(bytes) / float64(total)
	}
	free, total, err := g.e.MemInfo()
	if err != nil || total == 0 {
		return 0, 0
	}
	return int64(total - free), float64(total-free) / float64(total)
}

// byNVML is what NVML says; total is 0 where there is none.
func (g *gauge) byNVML() (bytes int64, own bool, total int64) {
	if g.lib == nil {
		return 0, false, 0
	}
	now, err := g.gpu.Memory()
	if err != nil {
		return 0, false, 0
	}
	used, own := now.ProcessUsed[g.pid]
	if !own {
		used = now.UsedBytes
	}
	return int64(used), own, int64(now.TotalBytes)
}

func (g *gauge) close() {
	if g.lib != nil {
		g.lib.Close()
	}
}

// peaks are what GPUs do at most in bfloat16, dense, a second, as torchtitan counts, also where products run in float8. A
// longer name stands before one that is part of it.
var peaks = []struct {
	name  string
	flops float64
}{
	{"A100", 312e12}, {"H100 NVL", 835e12}, {"H100 PCIe", 756e12}, {"H100", 989e12}, {"H200", 989e12}, {"H20", 148e12}, {"B200", 2.25e15},
	{"L40S", 362e12}, {"A6000", 154.85e12},
}

// peakFLOPS is that of the device, 0 where it is not known.
func peakFLOPS(name string) float64 {
	for _, p := range peaks {
		if strings.Contains(name, p.name) {
			return p.flops
		}
	}
	return 0
}
