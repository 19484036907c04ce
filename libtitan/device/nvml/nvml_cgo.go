//go:build cgo

package nvml

import "github.com/NVIDIA/go-nvml/pkg/nvml"

// Library is the loaded NVML.
type Library struct{}

// Open loads libnvidia-ml.so.1. Nothing else of the library may be called before: it would end the process.
func Open() (*Library, error) {
	switch ret := nvml.Init(); ret {
	case nvml.SUCCESS:
		return &Library{}, nil
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, missing("libnvidia-ml.so.1 is not on this machine's library path: install NVIDIA's driver")
	default:
		return nil, missing("init: %s", nvml.ErrorString(ret))
	}
}

// Close unloads the library.
func (l *Library) Close() { nvml.Shutdown() }

// Sample reads every GPU.
func (l *Library) Sample() ([]GPU, error) {
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, missing("count devices: %s", nvml.ErrorString(ret))
	}
	var out []GPU
	for i := range n {
		g, err := sample(i)
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

func sample(i int) (GPU, error) {
	g := GPU{Index: i, ProcessUsed: map[int]uint64{}}
	d, ret := nvml.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return g, missing("device %d: %s", i, nvml.ErrorString(ret))
	}
	memory, ret := d.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return g, missing("device %d: memory: %s", i, nvml.ErrorString(ret))
	}
	g.UsedBytes, g.TotalBytes = memory.Used, memory.Total
	// The rest is not told by every driver.
	if name, ret := d.GetName(); ret == nvml.SUCCESS {
		g.Name = name
	}
	if u, ret := d.GetUtilizationRates(); ret == nvml.SUCCESS {
		g.Utilization = int(u.Gpu)
	}
	if processes, ret := d.GetComputeRunningProcesses(); ret == nvml.SUCCESS {
		for _, p := range processes {
			g.ProcessUsed[int(p.Pid)] = p.UsedGpuMemory
		}
	}
	return g, nil
}
