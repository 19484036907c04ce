// Package train is the step loop: data in, checkpoints and metrics out. [Run] trains a manifest's job, [Eval]
// measures a checkpoint.
//
// A run (train.go) starts its ranks, each with a loop of its own (rank.go) over a machine to compute on: the host
// (machine.go) or a GPU (gpu.go). What a run begins from is load.go's, what it leaves behind save.go's and saver.go's.
package train

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"titan/libtitan/checkpoint"
	"titan/libtitan/comm"
	"titan/libtitan/comm/local"
	"titan/libtitan/comm/mpi"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cpu"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/plan"
)

// Options are what a run needs beside its manifest.
type Options struct {
	CPU           cpu.Options
	Device        string         // what is computed on: "cpu" (or "") or "cuda"
	Deterministic bool           // on a GPU too the same bits in every run
	LogFreq       int            // steps between console lines; the first and the last are always printed
	Console       io.Writer      // the lines of a person
	Metrics       io.Writer      // one JSON object a step; nil: none
	GradNorms     bool           // one norm a parameter in them
	TensorBoard   string         // folder; "": none
	FreshData     bool           // begin the data at its first row, whatever the checkpoint says
	Comm          string         // how ranks talk: "local" (or ""), all in this process, or one a process: "mpi", or on GPUs "nccl"
	Children      *nccl.Children // the ranks that this process started; nil: none
	InitTimeout   time.Duration  // how long a rank may be waited for in the first step; 0: comm.DefaultTimeout
	CommTimeout   time.Duration  // and after it; 0: InitTimeout
	StreamPolicy  string         // "": values lie in a planned arena; else in a caching allocator under this policy
	TraceMemory   io.Writer      // what becomes of the memory of TraceRank, as memprof reads it; nil: no trace
	TraceRank     int
	Log           *slog.Logger
	Progress      func(steps int64) // called with the steps that were done before, and after each; nil: nobody watches
}

// Run trains m to its last step, from the newest checkpoint of its folder, else from initial_load_path, else from
// its seed. When ctx ends the current step is finished and saved first, and the error is ctx's.
func Run(ctx context.Context, m *manifest.Manifest, o Options) error {
	r, err := prepare(ctx, m, o)
	if err != nil {
		return err
	}
	defer r.close()
	if r.report, err = newReport(r); err != nil {
		return err
	}
	defer r.report.close()
	if r.left.Step >= m.Training.Steps {
		r.Log.Info(fmt.Sprintf("nothing to do: step %d of %d is done; go on with --steps N above %d", r.left.Step, m.Training.Steps, r.left.Step))
		return nil
	}
	r.startup.done("checkpoint and data found")
	if err := r.fits(); err != nil {
		return err
	}
	r.startup.done("plan")
	r.tellFusion()
	if r.Progress != nil {
		r.Progress(int64(r.left.Step))
	}
	defer context.AfterFunc(ctx, func() {
		first := "which is saved first"
		if !r.saves() {
			first = "which is not saved: " + r.unsaved()
		}
		r.Log.Warn(fmt.Sprintf("stopping after this step, %s; interrupt again to stop at once", first))
	})()
	// A rank that is told to stop says so to the others at the end of its step, so that all stop after the same one.
	inner := context.WithoutCancel(ctx)
	return r.start(inner, func(inner context.Context, c comm.Comm) error {
		k, err := r.newRank(c, true)
		if err != nil {
			return err
		}
		err = k.endSave(k.loop(inner, ctx))
		k.tellMemory()
		return first(err, k.trace.close(), k.machine.close())
	})
}

// first is the first of errors that is one.
func first(errs ...error) error {
	i := slices.IndexFunc(errs, func(err error) bool { return err != nil })
	if i < 0 {
		return nil
	}
	return errs[i]
}

// run is one call of Run or Eval: what its ranks share and do not change.
type run struct {
	Options
	job        *parallel.Job
	engine     *cpu.Engine
	startup    *startup
	gpu        *cuda.Engine      // nil: the host computes
	gauge      *gauge            // of the GPU's memory
	from       checkpoint.Source // nil: the parameters come from the seed
	found      bool              // from is a step of the checkpoint folder
	resume     bool              // from's moments are loaded
	stored     map[string]string // from's names of what is loaded, by ours
	left       position          // where from left off
	train      *dataset
	validation *dataset // nil: none
	report     *report
	programs   map[int]*plan.Program // of ranks, as far as they were planned to see whether they fit
	evaluating bool                  // forward alone: no optimizer state is needed
}

// prepare opens a run that trains, with its data.
func prepare(ctx context.Context, m *manifest.Manifest, o Options) (*run, error) {
	r, err := open(m, o, false)
	if err != nil {
		return nil, err
	}
	if err = r.checkFolders(); err == nil {
		r.train, err = r.openData(ctx, m.Data.Paths, m.Data.Exclude, !m.Data.Sequential)
	}
	if err == nil {
		err = r.checkResume()
	}
	if err == nil && len(m.Data.ValidationPaths) > 0 && m.Data.ValidationInterval > 0 {
		if r.validation, err = r.openData(ctx, m.Data.ValidationPaths, nil, !m.Data.Sequential); err != nil {
			err = fmt.Errorf("validation data: %w", err)
		}
	}
	if err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// open is what Run and Eval begin with: the job, what it is computed on, and the checkpoint that it starts from.
func open(m *manifest.Manifest, o Options, evaluating bool) (*run, error) {
	job, err := parallel.New(m)
	if err != nil {
		return nil, err
	}
	if err := checkSaving(m.Checkpoint); err != nil && !evaluating {
		return nil, err
	}
	if err := o.checkTrace(job.NumRanks()); err != nil {
		return nil, err
	}
	if m.Data == nil {
		return nil, exit.Usage.Errorf("no data: name some with --data FILE|DIR|GLOB")
	}
	r := &run{Options: o, job: job, startup: newStartup(o.Log), evaluating: evaluating, programs: map[int]*plan.Program{}}
	r.startup.done("the process, its command line and manifest")
	if r.engine, err = cpu.New(o.CPU); err != nil {
		return nil, exit.Usage.Wrap(err)
	}
	if o.Device == "cuda" {
		if err := r.openGPU(); err != nil {
			return nil, err
		}
	}
	return r, r.find(m.Checkpoint)
}

// start runs f for each rank of this process: all of them, or the one that a launcher made it. Before f, the ranks
// make sure that they run the same job.
func (r *run) start(ctx context.Context, f func(ctx context.Context, c comm.Comm) error) error {
	o := comm.Options{Timeout: r.InitTimeout, Log: r.Log}
	each := func(ctx context.Context, c comm.Comm) error {
		if err := r.sameJob(ctx, c); err != nil {
			return err
		}
		if r.gpu != nil {
			leave, err := r.gpu.Enter()
			if err != nil {
				return err
			}
			defer leave()
		}
		if c.Rank() == 0 {
			r.startup.done("ranks that know each other")
		}
		return f(ctx, c)
	}
	switch {
	case r.Comm == "mpi":
		return mpi.Run(ctx, o, each)
	case r.Comm == "nccl":
		if r.Children != nil {
			var stop func()
			ctx, stop = r.Children.With(ctx)
			defer stop()
		}
		return nccl.Run(ctx, r.gpu.Device, o, func(ctx context.Context, c *nccl.Rank) error { return each(ctx, c) })
	case r.gpu != nil && r.job.NumRanks() > 1:
		return exit.Input.Errorf("mesh.world_size: %d: on GPUs each rank is a process of its own: start them with titan-run, torchrun or srun", r.job.NumRanks())
	}
	return local.RunWith(ctx, r.job.NumRanks(), o, each)
}

// apart reports whether each rank is a process of its own.
func (r *run) apart() bool { return r.Comm == "mpi" || r.Comm == "nccl" }

// program plans a rank's step. On a GPU the optimizer makes the copies of parameters that are computed with, products make
// sums, FSDP's moves run beside what is computed, what they gather lies in windows unless an allocator is to have every
// value, and gradients share the arena with activations.
func (r *run) program(rank int) (*plan.Program, error) {
	prog, err := r.job.Program(rank)
	if err != nil || r.gpu == nil {
		return prog, err
	}
	if _, cached := r.policy(); cached {
		prog.ForCache()
	} else {
		prog.ForGPU()
	}
	return prog, nil
}

// fits refuses a job whose ranks, all in this process, need more memory than the machine has left.
func (r *run) fits() error {
	if r.gpu != nil {
		return r.fitsGPU()
	}
	var need int64
	ranks := r.job.NumRanks()
	if r.apart() {
		ranks = 1 // the others have processes, perhaps machines, of their own
	}
	for rank := range ranks {
		for _, h := range r.job.Held(rank) {
			need += 16 * h.NumElements() // parameter, gradient, two moments
			if h.First && r.saves() && r.job.Manifest.Checkpoint.Async() {
				need += 12 * h.NumElements() // the copy that is written
			}
		}
		prog, err := r.program(rank)
		if err != nil {
			return err
		}
		r.programs[rank] = prog
		need += int64(prog.ArenaBytes + prog.ConstBytes)
	}
	if have := procField("/proc/meminfo", "MemAvailable:"); have > 0 && need > have {
		return exit.Input.Errorf("memory: for %s this machine needs %s and has %s left: plan a smaller model, sequence or batch, or checkpoint activations", manifest.Counted(ranks, "rank"), manifest.HumanBytes(need), manifest.HumanBytes(have))
	}
	return nil
}

func (r *run) close() {
	for _, d := range []*dataset{r.train, r.validation} {
		if d != nil {
			d.Close()
		}
	}
	if r.from != nil {
		r.from.Close()
	}
	if r.gpu != nil {
		r.gauge.close()
		r.gpu.Close()
	}
}
