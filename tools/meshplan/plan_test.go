package main

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/estimate"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/pipeline"
)

// split fills the stages of m as pp-split does.
func split(t require.TestingT, m *manifest.Manifest) {
	p, pp := m.Pipeline, m.Mesh.Dims.PP
	if p == nil {
		return
	}
	rankOf, err := pipeline.StageRank(p.Schedule, pp, 0, p.NumMicrobatches)
	require.NoError(t, err)
	stages, err := pipeline.Split(pipeline.Cut{NumLayers: m.Model.Config.NumLayers, NumStages: len(rankOf), FirstWeight: 1, LastWeight: 1})
	require.NoError(t, err)
	for i, fqns := range stages {
		p.Stages = append(p.Stages, manifest.Stage{Stage: i, PPRank: rankOf[i], FQNs: fqns})
	}
}

// job is the manifest that meshplan writes of o.
func job(t require.TestingT, o *options) *manifest.Manifest {
	m := &manifest.Manifest{Schema: manifest.SchemaName}
	require.NoError(t, o.fill(m))
	return m
}

// Every plan that a search takes for legal is a manifest that all tools take, and starts in titan-run unless it is
// marked plan_only: 500 and more plans of random tiny models, each planned for the first and the last rank.
func TestPlansStart(t *testing.T) {
	started := 0
	rapid.Check(t, func(t *rapid.T) {
		o := defaults()
		o.model = "tiny"
		o.given = func(flag string) bool {
			return flag == "layers" || flag == "heads" || flag == "kv-heads" || flag == "seq-len" || flag == "vocab"
		}
		o.config = manifest.ModelConfig{NumLayers: rapid.IntRange(1, 9).Draw(t, "layers"), NumHeads: rapid.SampledFrom([]int{4, 6, 8}).Draw(t, "heads"), NumKVHeads: 2, VocabSize: rapid.SampledFrom([]int{256, 259}).Draw(t, "vocab")}
		o.config.NumKVHeads = rapid.SampledFrom([]int{1, 2, o.config.NumHeads}).Draw(t, "kv heads")
		o.batch.SeqLen = rapid.SampledFrom([]int{16, 24, 64}).Draw(t, "seq_len")
		o.float8 = rapid.SampledFrom([]string{"off", "off", "tensorwise", "rowwise", "rowwise_with_gw_hp"}).Draw(t, "float8")
		o.compile = rapid.IntRange(0, 7).Draw(t, "compile") == 0
		on, err := estimate.FindMachine("h100")
		require.NoError(t, err)
		one := o.planned(&estimate.Job{Rows: 1, NumMicrobatches: 1, Passes: 1, Compute: "float32", AC: manifest.ActivationCheckpoint{Mode: "none"},
			Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}})
		one.worldSize = 1
		base := job(t, one)
		if manifest.Validate(base) != nil {
			t.Skip("no model")
		}
		j, err := estimate.FromManifest(base)
		require.NoError(t, err)
		s := &estimate.Space{Job: *j, World: rapid.IntRange(1, 16).Draw(t, "world"), GlobalBatch: rapid.SampledFrom([]int{0, 16, 24}).Draw(t, "global"), Schedules: pipeline.Names(), Machine: on}
		require.NoError(t, o.checkpointing(s))
		o.worldSize = s.World
		plans := estimate.Plans(s)
		if len(plans) == 0 {
			return
		}
		for range 8 {
			p := plans[rapid.IntRange(0, len(plans)-1).Draw(t, "plan")]
			chosen := o.planned(p)
			chosen.worldSize = s.World
			m := job(t, chosen)
			split(t, m)
			m.Derive()
			require.NoError(t, manifest.Validate(m), "%+v", p)
			run, err := parallel.New(m)
			if planOnly(p, m) {
				require.Error(t, err)
				continue
			}
			require.NoError(t, err)
			for _, rank := range []int{0, run.NumRanks() - 1} {
				_, err = run.Program(rank)
				require.NoError(t, err, "%+v", p)
			}
			started++
		}
	})
	require.GreaterOrEqual(t, started, 500)
}

// Every mesh of the tiny model's 8, 12 and 16 ranks is a plan exactly where manifest.Validate takes it with some schedule.
func TestSearchTakesWhatIsLegal(t *testing.T) {
	on, err := estimate.FindMachine("h100")
	require.NoError(t, err)
	for _, world := range []int{8, 12, 16} {
		o := defaults()
		o.model, o.given = "tiny", func(string) bool { return false }
		one := o.planned(&estimate.Job{Rows: 1, NumMicrobatches: 1, Passes: 1, Compute: "float32", AC: manifest.ActivationCheckpoint{Mode: "none"},
			Dims: manifest.MeshDims{PP: 1, DPReplicate: 1, DPShard: 1, CP: 1, TP: 1, EP: 1}})
		one.worldSize = 1
		j, err := estimate.FromManifest(job(t, one))
		require.NoError(t, err)
		s := &estimate.Space{Job: *j, World: world, LocalBatch: 8, Schedules: pipeline.Names(), Machine: on}
		require.NoError(t, o.checkpointing(s))
		planned := map[manifest.MeshDims]bool{}
		for _, p := range estimate.Plans(s) {
			planned[p.Dims] = true
		}
		legal := 0
		for _, d := range factors(world) {
			ok := takes(t, o, world, d)
			require.Equal(t, ok, planned[d], "%+v", d)
			if ok {
				legal++
			}
		}
		require.Len(t, planned, legal)
		require.Greater(t, legal, 5)
	}
}

// factors lists every way to spread n ranks over the axes.
func factors(n int) (all []manifest.MeshDims) {
	for pp := 1; pp <= n; pp++ {
		for r := 1; pp*r <= n; r++ {
			for s := 1; pp*r*s <= n; s++ {
				for cp := 1; pp*r*s*cp <= n; cp++ {
					if tp := n / (pp * r * s * cp); pp*r*s*cp*tp == n {
						all = append(all, manifest.MeshDims{PP: pp, DPReplicate: r, DPShard: s, CP: cp, TP: tp, EP: 1})
					}
				}
			}
		}
	}
	return all
}

// takes reports whether manifest.Validate takes a mesh with 8 local rows under some schedule and number of microbatches.
func takes(t require.TestingT, o *options, world int, d manifest.MeshDims) bool {
	for _, name := range pipeline.Names() {
		for _, n := range []int{1, 2, 4, 8} {
			p := o.planned(&estimate.Job{Rows: 8 / n, NumMicrobatches: n, Passes: 1, Compute: "float32", Schedule: name, AC: manifest.ActivationCheckpoint{Mode: "none"}, Dims: d})
			p.worldSize = world
			m := job(t, p)
			if m.Pipeline != nil {
				rankOf, err := pipeline.StageRank(name, d.PP, 0, n)
				if err != nil {
					continue
				}
				if _, err := pipeline.Split(pipeline.Cut{NumLayers: m.Model.Config.NumLayers, NumStages: len(rankOf), FirstWeight: 1, LastWeight: 1}); err != nil {
					continue
				}
				split(t, m)
				m.Derive()
			}
			if manifest.Validate(m) == nil {
				return true
			}
		}
	}
	return false
}

// The arena that is predicted for a pipeline rank is that of each of its ranks within 2%, on every mesh of 8, each with
// another type, activation checkpointing and schedule.
func TestArenas(t *testing.T) {
	types, schedules := []string{"float32", "bfloat16"}, []string{"1F1B", "GPipe", "Interleaved1F1B"}
	acs := []manifest.ActivationCheckpoint{{Mode: "none"}, {Mode: "full"}, {Mode: "selective", Option: "op"}, {Mode: "selective", Option: "cheap"}}
	for i, d := range factors(8) {
		o := defaults()
		o.model, o.given = "tiny", func(string) bool { return false }
		n := min(8, 2*d.PP)
		p := o.planned(&estimate.Job{Rows: 8 / n, NumMicrobatches: n, Passes: 1, Compute: types[i%2], Schedule: schedules[i/2%3], AC: acs[i%3], Dims: d})
		p.worldSize = 8
		m := job(t, p)
		if d.PP > 4 || manifest.Validate(m) != nil {
			continue
		}
		split(t, m)
		m.Derive()
		ranks, err := arenas(m, false)
		require.NoError(t, err)
		run, err := parallel.New(m)
		require.NoError(t, err)
		for rank := range run.NumRanks() {
			program, err := run.Program(rank)
			require.NoError(t, err)
			require.InEpsilon(t, program.ArenaBytes, ranks[program.PP].Activations, 0.02, "%+v rank %d", d, rank)
		}
	}
}
