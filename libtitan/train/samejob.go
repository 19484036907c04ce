package train

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"

	"titan/libtitan/comm"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// compared is what ranks compare of their jobs: the manifest's sections, and the programs of those with the same stages.
var compared = []string{
	"schema", "model", "mesh", "training", "optimizer", "lr_scheduler", "activation_checkpoint", "compile", "float8", "pipeline",
	"checkpoint", "data", program,
}

const program = "program"

// sameJob compares hashes over the ranks: another job, or another number of ranks, would hang later.
func (r *run) sameJob(ctx context.Context, c comm.Comm) error {
	if c.Size() != r.job.NumRanks() {
		return exit.Input.Errorf("mesh.world_size: %d, but %d ranks were started: start as many as the mesh has", r.job.NumRanks(), c.Size())
	}
	mine, err := r.digest(c.Rank())
	if err != nil {
		return err
	}
	all := make([][]byte, c.Size())
	for i := range all {
		all[i] = make([]byte, len(mine))
	}
	if err := c.AllGather(ctx, comm.World(c.Size()), "job hash", comm.Gathered{Mine: mine, Out: all}); err != nil {
		return err
	}
	for i, what := range compared {
		at := i * sha256.Size
		for rank, theirs := range all {
			if bytes.Equal(theirs[at:][:sha256.Size], mine[at:][:sha256.Size]) || what == program && r.job.Where(rank).PP != r.job.Where(c.Rank()).PP {
				continue
			}
			if what == program {
				return exit.Input.Errorf("rank %d has made another program of the manifest than rank %d: start every rank with the same titan-run", rank, c.Rank())
			}
			return exit.Input.Errorf("rank %d runs another job than rank %d: their manifests differ in section %s: give every rank the same", rank, c.Rank(), what)
		}
	}
	return nil
}

// digest is the hash of each thing compared, one after the other.
func (r *run) digest(rank int) ([]byte, error) {
	var text bytes.Buffer
	if err := manifest.Write(&text, r.job.Manifest); err != nil {
		return nil, err
	}
	var sections map[string]json.RawMessage
	if err := json.Unmarshal(text.Bytes(), &sections); err != nil {
		return nil, err
	}
	graphs, err := r.graphs(rank)
	if err != nil {
		return nil, err
	}
	sections[program] = graphs
	var out []byte
	for _, name := range compared {
		sum := sha256.Sum256(sections[name])
		out = append(out, sum[:]...)
	}
	return out, nil
}

// graphs is the text of what a rank runs in training.
func (r *run) graphs(rank int) (text []byte, err error) {
	for stage, pp := range r.job.StageRank {
		if pp != r.job.Where(rank).PP || r.evaluating {
			continue
		}
		graph, err := r.job.Text(stage)
		if err != nil {
			return nil, err
		}
		text = append(text, graph...)
	}
	return text, nil
}
