// Package nvml reads what NVIDIA's management library says of the GPUs of this machine: [Open], then [Library.Sample] for
// all, or [Library.Find] for one. The library is found at run time; a build without cgo says that it has none.
package nvml

import "titan/libtitan/exit"

// GPU is one device at one moment.
type GPU struct {
	Index       int
	Name        string
	UsedBytes   uint64 // of memory, by all processes
	TotalBytes  uint64
	ProcessUsed map[int]uint64 // bytes by process, where the driver tells
	Utilization int            // percent of the last sample period in which a kernel ran
}

func missing(format string, args ...any) error {
	return exit.Lost.Errorf("nvml: "+format, args...)
}
