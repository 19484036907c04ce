package parallel

import (
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pass"
	"titan/libtitan/placement"
)

// spread is how a job's values lie on the mesh of a stage.
func spread(m *manifest.Manifest) pass.Spread {
	d := m.Mesh.Dims
	mesh := placement.Mesh{d.DPReplicate, d.DPShard, d.CP, d.TP}
	live := mesh.Live()
	fsdp := (placement.DPShard | placement.CP) & live
	s := pass.Spread{Mesh: mesh, Keep: m.Mesh.Keeps(), WholeLogits: m.Mesh.DisableLossParallel, Ring: m.Mesh.CPRotate == "ring"}
	s.Param = func(fqn string, shape []int) (stored, used placement.Layout) {
		used = llama3.Placement(fqn, len(shape), live)
		if stored = used; fsdp != 0 {
			stored = used.Cut(0, fsdp)
		}
		return stored, used
	}
	s.Value = func(name string, shape []int) placement.Layout {
		l := placement.Replicated(len(shape))
		if len(shape) < 2 {
			return l
		}
		for _, a := range (live & (placement.DPReplicate | placement.DPShard)).Each() {
			l = l.Cut(0, a)
		}
		for _, a := range (live & placement.CP).Each() {
			l = l.Cut(1, a)
		}
		if len(shape) == 3 && live.Has(placement.TP) && !m.Mesh.DisableSequenceParallel {
			l = l.Cut(1, placement.TP)
		}
		return l
	}
	return s
}
