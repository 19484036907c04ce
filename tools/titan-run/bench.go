package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"titan/libtitan/comm"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cuda"
	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/measure"
	"titan/tools/internal/app"
)

// benchVerb measures this machine for meshplan.
func benchVerb() app.Verb {
	path, ranks, o := "", 0, measure.Options{Device: "cpu"}
	return app.Verb{
		Name: "bench", Usage: "measure this machine, for meshplan --hardware",
		Example: "titan-run bench --hardware here.json && meshplan --model debugmodel --hardware here.json --world-size 2 --explain > job.json",
		Flags: []cli.Flag{
			app.Text(&path, "write what was measured to `FILE`, or - for stdout", "hardware", "o"),
			app.Choice(&o.Device, []string{"cpu", "cuda"}, "what is measured: the cpu and ranks that share it, or NVIDIA GPUs", "device"),
			app.Natural(&ranks, "GPUs between which collectives are measured (default: all)", "ranks"),
			app.Natural(&o.CPU.Threads, "threads of the cpu's kernels (default: all cores)", "threads"),
			app.Choice(&o.CPU.Products, []string{"builtin", "onednn"}, "who multiplies matrices on the cpu", "products"),
		},
		Run: func(ctx context.Context, e *app.Env) error {
			if path == "" {
				return exit.Usage.Errorf("nowhere to write: name a file with --hardware FILE, or - for stdout")
			}
			if launch, err := comm.Launched(os.Getenv); err == nil && launch.Rank == 0 && path != "-" {
				if err := app.CheckFile("--hardware", path); err != nil {
					return err
				}
			}
			o.Log, o.Comm = e.Log, comm.Options{Timeout: time.Minute, Log: e.Log}
			m, err := measured(ctx, e, o, ranks)
			if err != nil || m == nil {
				return err
			}
			tellMeasured(e.Explain, m)
			return e.WriteFile(path, func(w io.Writer) error { return writeMachine(w, m) })
		},
	}
}

// measured measures as one process, or as rank 0 of those that it starts; the others' answer is nil.
func measured(ctx context.Context, e *app.Env, o measure.Options, ranks int) (*estimate.Machine, error) {
	launch, err := comm.Launched(os.Getenv)
	switch {
	case err != nil:
		return nil, exit.Usage.Wrap(err)
	case o.Device == "cpu" && launch.Size > 1:
		return nil, exit.Usage.Errorf("%s started %d processes: ranks of the cpu are measured in one: start one", launch.By, launch.Size)
	case launch.Rank != 0:
		e.Silence()
		_, err := measure.Machine(ctx, o)
		return nil, err
	case o.Device == "cpu" || launch.By != "":
		return measure.Machine(ctx, o)
	}
	n, err := cuda.Count()
	if err != nil {
		return nil, err
	}
	if ranks = cmp.Or(ranks, n); ranks < 1 || ranks > n {
		return nil, exit.Usage.Errorf("--ranks %d: this machine has %d GPUs", ranks, n)
	}
	if ranks == 1 {
		return measure.Machine(ctx, o)
	}
	if err := nccl.Connections(o.Log); err != nil {
		return nil, err
	}
	children, err := nccl.Start(ranks, nil)
	if err != nil {
		return nil, err
	}
	ctx, stop := children.With(ctx)
	defer stop()
	m, err := measure.Machine(ctx, o)
	return m, cmp.Or(err, children.Wait())
}

func writeMachine(w io.Writer, m *estimate.Machine) error {
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", text)
	return err
}

// tellMeasured prints what was measured for people.
func tellMeasured(w io.Writer, m *estimate.Machine) {
	t := app.Table(w)
	defer t.Flush()
	d := m.Measured
	fmt.Fprintf(t, "%s\t%s\n", m.Name, m.About)
	for _, r := range d.Products {
		fmt.Fprintf(t, "product\t%s\t%d x %d -> %d\t%.4g TFLOP/s\n", r.Type, r.Tokens, r.In, r.Out, r.TFLOPS)
	}
	for _, r := range d.Attention {
		fmt.Fprintf(t, "attention\t%s\t%d positions, heads of %d\t%.4g, %.4g TFLOP/s forward, backward\n", r.Type, r.SeqLen, r.HeadDim, r.ForwardTFLOPS, r.BackwardTFLOPS)
	}
	for _, r := range d.Kernels {
		fmt.Fprintf(t, "%s\t%s\t\t%.4g GB/s\n", r.Name, r.Type, r.GBps)
	}
	for _, r := range d.Collectives {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.4g us, %.4g GB/s\n", r.Name, manifest.Counted(r.Ranks, "rank"), manifest.HumanBytes(int64(r.Bytes)), 1e6*r.Seconds, float64(r.Bytes)/r.Seconds/1e9)
	}
}
