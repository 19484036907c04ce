//go:build cgo

package nvml

import (
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

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

// Device is one GPU.
type Device struct {
	handle nvml.Device
	index  int
}

// Find is the GPU at a place of the PCI bus, as CUDA prints it: CUDA's numbers are of the GPUs that a process sees, NVML's
// of all.
func (l *Library) Find(busID string) (*Device, error) {
	h, ret := nvml.DeviceGetHandleByPciBusId(busID)
	if ret != nvml.SUCCESS {
		return nil, missing("device at %s: %s", busID, nvml.ErrorString(ret))
	}
	i, ret := h.GetIndex()
	if ret != nvml.SUCCESS {
		return nil, missing("device at %s: index: %s", busID, nvml.ErrorString(ret))
	}
	return &Device{h, i}, nil
}

// Sample reads every GPU.
func (l *Library) Sample() ([]GPU, error) {
	n, ret := nvml.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, missing("count devices: %s", nvml.ErrorString(ret))
	}
	var out []GPU
	for i := range n {
		h, ret := nvml.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, missing("device %d: %s", i, nvml.ErrorString(ret))
		}
		g, err := (&Device{h, i}).Read()
		if err != nil {
			return nil, err
		}
		out = append(out, g)
	}
	return out, nil
}

// Read reads the GPU now.
func (d *Device) Read() (GPU, error) {
	g, err := d.Memory()
	if err != nil {
		return g, err
	}
	// The rest is not told by every driver.
	if name, ret := d.handle.GetName(); ret == nvml.SUCCESS {
		g.Name = name
	}
	if u, ret := d.handle.GetUtilizationRates(); ret == nvml.SUCCESS {
		g.Utilization = int(u.Gpu)
	}
	return g, nil
}

// Memory reads what of the GPU's memory is taken, and by whom, alone: a step is worth no more.
func (d *Device) Memory() (GPU, error) {
	g := GPU{Index: d.index, ProcessUsed: map[int]uint64{}}
	memory, ret := d.handle.GetMemoryInfo()
	if ret != nvml.SUCCESS {
		return g, missing("device %d: memory: %s", d.index, nvml.ErrorString(ret))
	}
	g.UsedBytes, g.TotalBytes = memory.Used, memory.Total
	processes, ret := d.handle.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS {
		return g, nil // not every driver tells
	}
	for _, p := range processes {
		if p.UsedGpuMemory != notAvailable {
			g.ProcessUsed[int(p.Pid)] = p.UsedGpuMemory
		}
	}
	return g, nil
}

// notAvailable is NVML_VALUE_NOT_AVAILABLE, -1 as it is written into an unsigned field.
const notAvailable = math.MaxUint64
