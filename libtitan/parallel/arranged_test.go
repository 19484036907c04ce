package parallel

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/manifest"
	"titan/libtitan/op"
	"titan/libtitan/pipeline"
	"titan/libtitan/placement"
	"titan/libtitan/plan"
)

// However a program is arranged for a GPU, on whatever mesh, each step reads what was made for it, where it was put and before
// anything else is put there, and gradients, losses and messages are made of the same terms; what runs aside is not written over
// before it is used, and gradients that are said to be whole are.
func TestArrangedProgramsMakeTheSame(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		j, err := New(drawJob(r))
		require.NoError(r, err)
		seen := map[string]string{}
		for rank := range j.NumRanks() {
			p := program(r, j, rank, func(*plan.Program) {})
			want := newReplay(r, p).run()
			p = program(r, j, rank, (*plan.Program).ForGPU)
			require.Equal(r, want, newReplay(r, p).run(), "rank %d", rank)
			requireOneOrder(r, p, seen)
			requireOneWindow(r, p, seen)
			if rank == 0 {
				p = program(r, j, rank, (*plan.Program).ForCache)
				require.Equal(r, want, newReplay(r, p).run(), "in a caching allocator")
			}
		}
	})
}

func program(r *rapid.T, j *Job, rank int, arrange func(p *plan.Program)) *plan.Program {
	p, err := j.Program(rank)
	require.NoError(r, err)
	arrange(p)
	return p
}

// requireOneOrder checks that all ranks of a stage move values in one order.
func requireOneOrder(r *rapid.T, p *plan.Program, seen map[string]string) {
	order := ""
	for i := range p.Steps {
		if s := &p.Steps[i]; s.Kind == plan.Compute {
			if _, ok := s.Node.Attr.(op.MoveAttr); ok {
				order += fmt.Sprintf("%s %v %t\n", s, s.Action, s.Aside)
			}
		}
	}
	requireAsBefore(r, seen, fmt.Sprint("order of stage rank ", p.PP), order)
}

// requireOneWindow checks that ranks that gather together have one layout of their windows, and each a place of its own there for
// what it brings.
func requireOneWindow(r *rapid.T, p *plan.Program, seen map[string]string) {
	layout := fmt.Sprintln(p.WindowBytes)
	for _, s := range p.Windows {
		layout += fmt.Sprintln(s.Offset, s.Shape, s.DType)
	}
	requireAsBefore(r, seen, fmt.Sprintln(p.PP, p.Mesh.Group(p.Coord, placement.DPShard|placement.CP)), layout)
	for i := range p.Steps {
		s := &p.Steps[i]
		for k, in := range s.In {
			if in.Class != plan.Window || !slices.Contains(s.Out, in.Of) {
				continue
			}
			members := p.Mesh.Group(p.Coord, s.Node.Attr.(op.MoveAttr).Axes)
			shard := fmt.Sprintln(p.PP, members, i, k, in.Start/in.Bytes())
			require.NotContains(r, seen, shard)
			require.Less(r, in.Start/in.Bytes(), len(members))
			seen[shard] = ""
		}
	}
}

// requireAsBefore checks that what is called name is the same wherever it is seen.
func requireAsBefore(r *rapid.T, seen map[string]string, name, is string) {
	if was, ok := seen[name]; ok {
		require.Equal(r, was, is)
	}
	seen[name] = is
}

// drawJob draws a job of few small layers on a mesh of at most 8 ranks.
func drawJob(r *rapid.T) *manifest.Manifest {
	pick := func(name string, from ...int) int { return rapid.SampledFrom(from).Draw(r, name) }
	d := drawMesh(pick)
	m := compiledManifest(pick("layers", 1, 2), d, "model", "loss")
	m.Mesh.WorldSize = d.PP * d.DPReplicate * d.DPShard * d.CP * d.TP
	m.Compile.Enable = rapid.Bool().Draw(r, "compile")
	m.Model.Config.VocabSize, m.Model.Config.Tied = pick("vocab", 61, 256, 3000), rapid.Bool().Draw(r, "tied")
	m.Mesh.ReshardAfterForward = rapid.SampledFrom([]string{"default", "always", "never"}).Draw(r, "reshard")
	m.Mesh.CPRotate = rapid.SampledFrom([]string{"allgather", "ring"}).Draw(r, "rotate")
	if d.TP > 1 {
		m.Mesh.DisableSequenceParallel, m.Mesh.DisableLossParallel = rapid.Bool().Draw(r, "whole residuals"), rapid.Bool().Draw(r, "whole logits")
	}
	if recipe := rapid.SampledFrom([]string{"float32", "off", "tensorwise", "rowwise", "rowwise_with_gw_hp"}).Draw(r, "recipe"); recipe == "float32" {
		m.Training.MixedPrecisionParam = recipe
	} else {
		m.Float8 = manifest.NewFloat8(recipe)
	}
	microbatches := 1
	if d.PP == 2 {
		microbatches = pick("microbatches", 1, 2)
		all := pipeline.Modules(m.Model.Config.NumLayers)
		m.Pipeline = &manifest.Pipeline{Schedule: rapid.SampledFrom([]string{"1F1B", "GPipe"}).Draw(r, "schedule"), NumMicrobatches: microbatches,
			Stages: []manifest.Stage{{FQNs: all[:2]}, {Stage: 1, PPRank: 1, FQNs: all[2:]}}}
	}
	m.Training.GradAccumSteps, m.Training.LocalBatchSize = pick("accumulation", 1, 1, 2), microbatches
	m.Training.SeqLen, m.Model.Config.MaxSeqLen = 64, 64
	m.Training.GlobalBatchSize = microbatches * d.DPReplicate * d.DPShard * m.Training.GradAccumSteps
	mode := rapid.SampledFrom([][2]string{{"none"}, {"full"}, {"selective", "op"}, {"selective", "cheap"}, {"selective", "2"}}).Draw(r, "ac")
	m.ActivationCheckpoint = &manifest.ActivationCheckpoint{Mode: mode[0], Option: mode[1]}
	m.Derive()
	return m
}

func drawMesh(pick func(name string, from ...int) int) manifest.MeshDims {
	d := manifest.MeshDims{PP: pick("pp", 1, 1, 2), DPReplicate: pick("dp_replicate", 1, 1, 2), DPShard: pick("dp_shard", 1, 2, 2, 3, 4), CP: pick("cp", 1, 1, 2), TP: pick("tp", 1, 1, 2), EP: 1}
	for _, axis := range []*int{&d.TP, &d.CP, &d.DPReplicate, &d.PP} {
		if d.PP*d.DPReplicate*d.DPShard*d.CP*d.TP > 8 {
			*axis = 1
		}
	}
	return d
}
