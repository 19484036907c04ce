// Command titan-run trains the job of a manifest, and evaluates its checkpoints.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/parallel"
	"titan/libtitan/train"
	"titan/tools/internal/app"
)

const example = `seq 1 4000 > numbers.txt
meshplan --model tiny-259 --pp 2 --steps 100 | pp-split | seedinit --out seed |
    titan-run --data numbers.txt --checkpoint-dir counted > counted.json`

func main() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(10) // nearly all memory is planned and lives as long as the run: garbage may be a tenth of it
	}
	app.Main(tool())
}

func tool() app.Tool {
	var run, eval flags
	return app.Tool{
		Name:  "titan-run",
		Usage: "train a model",
		About: "Reads a manifest, trains to its last step, and passes the manifest on with what it was given. " +
			"A run whose checkpoint folder holds a step goes on from there. --dry-run checks all of it and stops before the first step; " +
			"--trace-memory records for memprof what comes and goes in memory. eval gives the loss of a checkpoint, " +
			"bench measures this machine for meshplan.",
		Example:  example,
		Flags:    slices.Concat(run.job(), run.loading(), run.training(), run.saving(), run.tracing()),
		Run:      func(ctx context.Context, e *app.Env) error { return trainVerb(ctx, e, &run) },
		Manifest: true,
		Verbs: []app.Verb{{
			Name: "eval", Usage: "evaluate: print the loss of a checkpoint on data",
			Example:  "seq 4001 5000 > held-out.txt && titan-run eval -i counted.json --data held-out.txt",
			Flags:    slices.Concat(eval.job(), eval.loading(), eval.evaluation()),
			Run:      func(ctx context.Context, e *app.Env) error { return evalVerb(ctx, e, &eval) },
			Manifest: true,
		}, benchVerb()},
	}
}

// flags are the command line: what goes into the manifest, and what is of this run alone.
type flags struct {
	paths, exclude, held []string
	excluded             []string
	checkpoint           manifest.Checkpoint
	data                 manifest.Data
	steps, loadStep      int
	stage                int
	seed                 uint64
	dtype, metrics       string
	async                string
	ac, float8           string
	compile              bool
	dryRun               bool
	traceMemory          string
	batches              int
	initSeconds, seconds int
	options              train.Options
}

func (f *flags) job() []cli.Flag {
	f.options.Device = "cpu"
	return []cli.Flag{
		app.Texts(&f.paths, "read `FILE`, folder or glob (repeatable; ** is any depth; default: the manifest's)", "data"),
		app.Texts(&f.exclude, "leave out what `GLOB` matches (repeatable)", "exclude"),
		app.Named(&f.data.Tokenizer, []string{"byte"}, "byte, or a Hugging Face tokenizer.json `FILE` (default: the manifest's, else byte)", "tokenizer"),
		app.DType(&f.dtype, []string{"float32", "bfloat16"}, "type computed in (default: the manifest's)", "dtype"),
		app.Choice(&f.float8, []string{"off", "tensorwise", "rowwise", "rowwise_with_gw_hp"}, "`RECIPE` of the linears but lm_head; the cpu emulates it", "float8"),
		app.Choice(&f.options.Device, []string{"cpu", "cuda"}, "what computes: the cpu, or an NVIDIA GPU", "device"),
		app.Choice(&f.options.Comm, []string{"local", "mpi", "nccl"}, "how ranks talk: all in this process, or one a process, over Open MPI or, on GPUs, NCCL (default: as it was started)", "comm"),
		app.Natural(&f.options.CPU.Threads, "threads of the cpu's kernels (default: all cores)", "threads"),
		app.Choice(&f.options.CPU.Products, []string{"builtin", "onednn"}, "who multiplies matrices on the cpu", "products"),
	}
}

// maxSeconds is the longest wait for a rank: a year.
const maxSeconds = 365 * 24 * 60 * 60

func (f *flags) training() []cli.Flag {
	f.options.LogFreq, f.initSeconds, f.seconds = 10, 300, 100
	return []cli.Flag{
		app.Count(&f.steps, "train to step `N` (default: the manifest's)", "steps"),
		app.Natural(&f.stage, "run the ranks of pipeline stage `K` alone, one process of mpirun's -n 1 ... : -n 1 ..., or beside a launcher's variables", "stage"),
		app.Count(&f.seed, "seed of the data's order, and of the weights where no checkpoint is given", "seed"),
		app.Switch(&f.data.Sequential, "take the rows in the files' order", "sequential"),
		app.Switch(&f.options.FreshData, "begin the data at its first row, whatever the checkpoint says", "fresh-data"),
		app.Texts(&f.held, "validate on `FILE`, folder or glob (repeatable)", "validation-data"),
		app.Count(&f.data.ValidationInterval, "validate every `N` steps", "validation-interval"),
		app.Count(&f.data.ValidationSteps, "validate on `N` batches (default: all)", "validation-steps"),
		app.Switch(&f.options.Deterministic, "the same bits in every run: on the cpu that is always so", "deterministic"),
		app.AtLeast(&f.options.LogFreq, 1, "print every `N` steps", "log-freq"),
		app.Text(&f.metrics, "append one JSON object a step to `FILE`; -: to stdout, with -o FILE for the manifest", "metrics"),
		app.Within(&f.initSeconds, 1, maxSeconds, "give a rank that is waited for `N` seconds in the first step", "comm-init-timeout"),
		app.Within(&f.seconds, 1, maxSeconds, "give a rank that is waited for `N` seconds after it", "comm-timeout"),
		app.Switch(&f.options.GradNorms, "write the norm of every parameter's gradient into --metrics too", "grad-norms"),
		app.Folder(&f.options.TensorBoard, "write TensorBoard's events under `DIR`", "tensorboard"),
		app.Switch(&f.compile, "fuse the model's and the loss's elementwise work", "compile"),
		app.ActivationCheckpoint(&f.ac),
		app.Switch(&f.dryRun, "check everything up to the first step, print the learning rates and the memory (with --explain the graph of every stage), stop; no file is written, that of -o neither", "dry-run"),
	}
}

func (f *flags) evaluation() []cli.Flag {
	return []cli.Flag{app.AtLeast(&f.batches, 0, "read `N` batches; 0: all (default: all)", "batches")}
}

// apply puts what the command line gives into the manifest.
func (f *flags) apply(e *app.Env) func(*manifest.Manifest) error {
	return func(m *manifest.Manifest) error {
		if m.Training == nil {
			return exit.Input.Errorf("manifest: no training section: make one with meshplan")
		}
		if m.Data == nil {
			m.Data = &manifest.Data{}
		}
		if m.Checkpoint == nil {
			m.Checkpoint = &manifest.Checkpoint{}
		}
		if e.Given("ac") {
			ac, err := manifest.ParseActivationCheckpoint(f.ac)
			if err != nil {
				return exit.Usage.Errorf("--ac: %w", err)
			}
			m.ActivationCheckpoint = ac
		}
		for _, set := range []struct {
			flag string
			do   func()
		}{
			{"compile", func() { m.Compile = &manifest.Compile{Enable: f.compile, Components: []string{"model", "loss"}} }},
			{"data", func() { m.Data.Paths = f.paths }},
			{"exclude", func() { m.Data.Exclude = f.exclude }},
			{"tokenizer", func() { m.Data.Tokenizer = f.data.Tokenizer }},
			{"sequential", func() { m.Data.Sequential = f.data.Sequential }},
			{"validation-data", func() { m.Data.ValidationPaths = f.held }},
			{"validation-interval", func() { m.Data.ValidationInterval = f.data.ValidationInterval }},
			{"validation-steps", func() { m.Data.ValidationSteps = f.data.ValidationSteps }},
			{"dtype", func() { m.Training.MixedPrecisionParam = f.dtype }},
			{"float8", func() { f.applyFloat8(m) }},
			{"steps", func() { m.Training.Steps = f.steps }},
			{"seed", func() { m.Training.Seed = f.seed }},
		} {
			if e.Given(set.flag) {
				set.do()
			}
		}
		if err := f.applySaving(e.Given, m.Checkpoint); err != nil {
			return err
		}
		if f.metrics == "-" && (e.OutFile() == "" || f.traceMemory == "-") {
			return exit.Usage.Errorf("--metrics -: stdout is taken: name a file for the manifest with -o, and for --trace-memory")
		}
		if f.options.GradNorms && f.metrics == "" {
			return exit.Usage.Errorf("--grad-norms: they stand in the metrics: name a file with --metrics FILE")
		}
		if err := f.checkData(e.Given, m.Data); err != nil {
			return err
		}
		if m.Data.Tokenizer == "" {
			m.Data.Tokenizer = "byte"
		}
		return nil
	}
}

// checkData refuses data that is not there, or that would not be looked at.
func (f *flags) checkData(given func(flag string) bool, d *manifest.Data) error {
	switch {
	case len(d.Paths) == 0 || slices.Contains(d.Paths, ""):
		return exit.Usage.Errorf("no data: name some with --data FILE|DIR|GLOB")
	case slices.Contains(d.Paths, "-") || slices.Contains(d.ValidationPaths, "-"):
		return exit.Usage.Errorf("--data -: data is read more than once, and stdin is not: name a file")
	case given("validation-data") && !given("validation-interval") && d.ValidationInterval == 0:
		return exit.Usage.Errorf("--validation-data: nothing says how often: add --validation-interval N")
	case given("validation-interval") && d.ValidationInterval > 0 && len(d.ValidationPaths) == 0:
		return exit.Usage.Errorf("--validation-interval: there is nothing to validate on: add --validation-data FILE")
	}
	for _, path := range d.Paths {
		_, err := os.Stat(path)
		switch {
		case !errors.Is(err, fs.ErrNotExist) || strings.ContainsAny(path, "*?[{"):
		case given("data"):
			return exit.Input.Errorf("--data %s: there is no such file or folder", path)
		default:
			return exit.Input.Errorf("data.paths %s: there is no such file or folder: run where the manifest was written, or give --data", path)
		}
	}
	return nil
}

// checkFiles makes sure, where nothing is to be written, that what a run opens as it starts could be.
func (f *flags) checkFiles() error {
	for flag, path := range map[string]string{"--metrics": f.metrics, "--trace-memory": f.traceMemory} {
		if path == "" || path == "-" {
			continue
		}
		if err := app.CheckFile(flag, path); err != nil {
			return err
		}
	}
	return nil
}

func trainVerb(ctx context.Context, e *app.Env, f *flags) error {
	if err := f.join(e); err != nil {
		return err
	}
	m, err := e.ReadManifest(f.apply(e))
	if err != nil {
		return err
	}
	for _, check := range []func() error{e.CheckOut, func() error { return f.checkStage(e, m) }, func() error { return f.checkTracing(e) }} {
		if err := check(); err != nil {
			return err
		}
	}
	if err := parallel.TellFloat8(m, e.Log, e.Explain); err != nil {
		return err
	}
	f.options.Log, f.options.Console = e.Log, e.Console()
	f.options.InitTimeout, f.options.CommTimeout = time.Duration(f.initSeconds)*time.Second, time.Duration(f.seconds)*time.Second
	if f.dryRun {
		if err := f.checkFiles(); err != nil {
			return err
		}
		if err := train.DryRun(ctx, m, f.options, f.options.Console, e.Explain); err != nil {
			return err
		}
		if e.OutFile() != "" {
			e.Log.Info("dry run: -o " + e.OutFile() + " could be written, and is not")
		}
		return nil
	}
	if f.metrics == "-" {
		f.options.Metrics = e.Out
	} else if f.metrics != "" {
		file, err := os.OpenFile(f.metrics, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return fmt.Errorf("--metrics: %w", err)
		}
		defer file.Close()
		f.options.Metrics = file
	}
	bar := e.Steps("steps", int64(m.Training.Steps))
	ran := -1 // the first call tells what was done before
	f.options.Progress = func(steps int64) { ran++; bar.Add(steps) }
	err = f.traced(e, m, func() error {
		return f.alone(m, func() error { return train.Run(ctx, m, f.options) })
	})
	bar.Close()
	if err != nil {
		return err
	}
	goOn(m)
	if f.traceMemory == "-" && e.OutFile() == "" {
		return nil // stdout is the trace's
	}
	if err := e.WriteManifest(m); err != nil {
		return err
	}
	if c := m.Checkpoint; ran > 0 && c.Folder != "" && !c.LoadOnly && !c.LastSaveModelOnly && e.OutFile() != os.DevNull {
		f.tellGoOn(e, m)
	}
	return nil
}

func evalVerb(ctx context.Context, e *app.Env, f *flags) error {
	if err := f.join(e); err != nil {
		return err
	}
	m, err := e.ReadManifest(f.apply(e))
	if err != nil {
		return err
	}
	if err := parallel.TellFloat8(m, e.Log, e.Explain); err != nil {
		return err
	}
	f.options.Log, f.options.Console = e.Log, io.Discard
	var result train.Evaluation
	err = f.alone(m, func() (err error) {
		result, err = train.Eval(ctx, m, f.batches, f.options)
		return err
	})
	if err != nil {
		return err
	}
	return e.WriteOut(func(w io.Writer) error { return app.WriteJSON(w, result) })
}
