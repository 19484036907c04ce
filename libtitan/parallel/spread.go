package parallel

import (
	"strings"

	"titan/libtitan/dtype"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/pass"
	"titan/libtitan/placement"
)

// spread is how a job's values lie on the mesh of a stage, which works on microbatches of shape s.
func spread(m *manifest.Manifest, s shape) pass.Spread {
	mesh := meshOf(m)
	live := mesh.Live()
	fsdp := (placement.DPShard | placement.CP) & live
	on := pass.Spread{Mesh: mesh, Unit: unit(m.Model.Config.Tied), Kept: kept(m.Mesh), WholeLogits: m.Mesh.DisableLossParallel, Ring: m.Mesh.CPRotate == "ring"}
	rows := rowsTravel(m, s)
	on.Param = func(fqn string, shape []int) (stored, used placement.Layout) {
		used = llama3.Placement(fqn, len(shape), live)
		if stored = used; fsdp != 0 {
			stored = used.Cut(0, fsdp)
		}
		if rows && fqn == "tok_embeddings.weight" {
			used = stored
		}
		return stored, used
	}
	on.Value = func(name string, shape []int) placement.Layout {
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
	return on
}

// meshOf is the mesh of a stage's ranks.
func meshOf(m *manifest.Manifest) placement.Mesh {
	d := m.Mesh.Dims
	return placement.Mesh{d.DPReplicate, d.DPShard, d.CP, d.TP}
}

// rowsTravel reports whether FSDP leaves the embedding's table where it is stored: each rank looks up in its part what the tokens
// of all ask for, the rows go to who asked, and their gradients come back. Of T tokens that is 2 T rows to send, in the type that
// is computed with; else the whole table is gathered in that type, and its gradient reduced in float32. A head that is tied needs
// the table whole.
func rowsTravel(m *manifest.Manifest, s shape) bool {
	tokens := s.rows / m.Mesh.Dims.DPReplicate * s.seqLen
	return !m.Model.Config.Tied && 2*tokens*s.compute.Size() < m.Model.Config.VocabSize*(s.compute.Size()+dtype.Float32.Size())
}

// unit is what FSDP gathers at once: a layer, the embedding, the last norm with the head; with a tied head the last two
// are one.
func unit(tied bool) func(param string) string {
	return func(param string) string {
		parts := strings.Split(param, ".")
		switch {
		case parts[0] == "layers":
			return parts[0] + "." + parts[1]
		case tied:
			return "tok_embeddings+norm"
		case parts[0] == "norm" || parts[0] == "lm_head":
			return "norm+lm_head"
		}
		return parts[0]
	}
}

// kept follows torchtitan: the unit of the last norm, which the backward begins with, is dropped in between only where all
// are always; the rest where there is no pp.
func kept(m *manifest.Mesh) func(unit string) pass.Kept {
	return func(unit string) pass.Kept {
		switch {
		case m.Keeps():
			return pass.ForStep
		case m.ReshardAfterForward != "always" && strings.Contains(unit, "norm"):
			return pass.ForMicrobatch
		}
		return pass.ForPhase
	}
}
