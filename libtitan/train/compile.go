package train

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"titan/libtitan/device/cuda"
)

// tellFusion says at debug level what was fused.
func (r *run) tellFusion() {
	if f := r.job.Fusion(); f != nil {
		r.Log.Debug(fmt.Sprintf("compile: %v", f))
	}
}

// explainFusion writes what was fused, and the kernel that a GPU runs of each kind.
func (r *run) explainFusion(w io.Writer) {
	f := r.job.Fusion()
	if f == nil {
		return
	}
	fmt.Fprintf(w, "compile: %v\n", f)
	for _, hash := range slices.Sorted(maps.Keys(f.Kinds)) {
		k := f.Kinds[hash]
		fmt.Fprintf(w, "\n// %d of these\n%s", k.Kernels, cuda.FusedSource(k.Program))
	}
}
