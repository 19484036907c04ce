package train

import (
	"context"
	"fmt"
	"io"
	"strings"

	"titan/libtitan/manifest"
	"titan/libtitan/optim"
	"titan/libtitan/plan"
)

// DryRun checks everything that Run needs before its first step, and prints the learning rates and the memory
// that each rank will use. Nothing is trained and nothing is written. text gets the graph of every stage.
func DryRun(ctx context.Context, m *manifest.Manifest, o Options, w, text io.Writer) error {
	r, err := prepare(ctx, m, o)
	if err != nil {
		return err
	}
	defer r.close()
	fmt.Fprintf(w, "data: %d rows of %d tokens an epoch, %d rows a step\n", r.train.Rows(), m.Training.SeqLen, m.Training.GlobalBatchSize)
	schedule, err := optim.NewSchedule(*m.LRScheduler, m.Training.Steps)
	if err != nil {
		return err
	}
	for _, warning := range schedule.Warnings {
		r.Log.Warn(warning)
	}
	for step := r.left.Step + 1; step <= m.Training.Steps; step++ {
		fmt.Fprintf(w, "step: %2d  lr: %.6g\n", step, m.Optimizer.LR*schedule.Factor(r.left.Epoch+step-1-r.left.Step))
	}
	for rank := range r.job.NumRanks() {
		prog, err := r.program(rank)
		if err != nil {
			return err
		}
		u := plan.Measure(prog)
		params := u.Fixed[plan.Param]
		fmt.Fprintf(w, "rank %d: stages %s: params %s  grads %s  optimizer %s  activations %s (peak live %s)\n", rank, stageList(prog),
			manifest.HumanBytes(int64(params)), manifest.HumanBytes(int64(u.Fixed[plan.Grad])), manifest.HumanBytes(int64(2*params)),
			manifest.HumanBytes(int64(prog.ArenaBytes)), manifest.HumanBytes(int64(u.PeakBytes)))
	}
	for i := range r.job.Stages {
		t, err := r.job.Text(i)
		if err != nil {
			return err
		}
		fmt.Fprintf(text, "stage %d\n%s", i, t)
	}
	r.explainFusion(text)
	return r.fits()
}

func stageList(p *plan.Program) string {
	var s []string
	for _, st := range p.Stages {
		s = append(s, fmt.Sprint(st.Index))
	}
	return strings.Join(s, ",")
}
