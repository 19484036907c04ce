//go:build !amd64

package cpu

// bestKernels is the portable set: there is assembler for amd64 alone.
func bestKernels() *kernels { return scalarKernels() }

func availableKernels() []*kernels { return []*kernels{scalarKernels()} }
