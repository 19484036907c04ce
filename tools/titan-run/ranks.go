package main

import (
	"bytes"
	"cmp"
	"os"

	"titan/libtitan/comm"
	"titan/libtitan/comm/mpi"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

// join finds out whether a launcher started this process as one rank of many; all but rank 0 are silent then.
func (f *flags) join(e *app.Env) error {
	launch, err := comm.Launched(os.Getenv)
	if err != nil {
		return exit.Usage.Wrap(err)
	}
	gpu := f.options.Device == "cuda"
	if launch.By != "" && !e.Given("comm") {
		if f.options.Comm = "mpi"; gpu {
			f.options.Comm = "nccl"
		}
	}
	switch {
	case launch.Size > 1 && f.options.Comm == "local":
		return exit.Usage.Errorf("--comm local: %s started %d processes, and each would run the whole job: leave --comm out, or start one", launch.By, launch.Size)
	case launch.By == "mpirun" && launch.Rank != 0 && !e.Given("in"):
		return exit.Usage.Errorf("mpirun gives its stdin to rank 0 alone: give every rank the manifest with -i FILE")
	case gpu && f.options.Comm == "mpi":
		return exit.Usage.Errorf("--comm mpi: GPUs talk over NCCL: give --comm nccl, or neither")
	case !gpu && f.options.Comm == "nccl":
		return exit.Usage.Errorf("--comm nccl: it moves the memory of GPUs: give --device cuda, or --comm mpi")
	case f.options.Comm == "mpi":
		err = mpi.Check(os.Getenv)
	case launch.By != "" && f.options.Comm == "nccl":
		err = nccl.Check(os.Getenv)
	}
	if err == nil && launch.Rank != 0 && (f.options.Comm == "mpi" || f.options.Comm == "nccl") {
		e.Silence()
		f.metrics, f.options.TensorBoard, f.options.GradNorms = "", "", false
	}
	return err
}

// checkStage holds the stage that --stage names to that of the rank which a launcher made this process. pp runs slowest, so
// the ranks of a stage lie beside each other.
func (f *flags) checkStage(e *app.Env, m *manifest.Manifest) error {
	if !e.Given("stage") {
		return nil
	}
	launch, err := comm.Launched(os.Getenv)
	if err != nil {
		return err
	}
	pp := m.Mesh.Dims.PP
	stages := []manifest.Stage{{}}
	if m.Pipeline != nil && m.Pipeline.Stages != nil {
		stages = m.Pipeline.Stages
	}
	if f.stage >= len(stages) {
		return exit.Usage.Errorf("--stage %d: the pipeline has stages 0 to %d", f.stage, len(stages)-1)
	}
	want, is := stages[f.stage].PPRank, launch.Rank/max(1, m.Mesh.WorldSize/pp)
	switch {
	case launch.By == "" && pp > 1:
		return exit.Usage.Errorf("--stage %d: nobody runs the other stages: start them together, as in mpirun -n 1 titan-run --stage 0 ... : -n 1 titan-run --stage 1 ..., or leave --stage out", f.stage)
	case is != want:
		return exit.Usage.Errorf("--stage %d: %s made this process rank %d, of pipeline rank %d, and the stage is of %d: name the stages in the order of their ranks", f.stage, launch.By, launch.Rank, is, want)
	}
	return nil
}

// alone does work as the only process, or, where GPUs are to compute for several ranks and no launcher started them, as
// rank 0 of those that it starts.
func (f *flags) alone(m *manifest.Manifest, work func() error) error {
	size := m.Mesh.WorldSize
	launch, err := comm.Launched(os.Getenv)
	if err != nil {
		return err
	}
	if launch.By != "" || f.options.Device != "cuda" || size < 2 {
		return work()
	}
	if err := nccl.Connections(f.options.Log); err != nil {
		return err
	}
	if n, err := cuda.Count(); err != nil {
		return err
	} else if n < size {
		return exit.Input.Errorf("mesh.world_size: %d, but this machine has %d GPUs: plan for as many, or start the ranks on several machines with torchrun or srun", size, n)
	}
	var in bytes.Buffer
	if err := manifest.Write(&in, m); err != nil {
		return err
	}
	f.options.Comm = "nccl"
	if f.options.Children, err = nccl.Start(size, in.Bytes()); err != nil {
		return err
	}
	err = work()
	return cmp.Or(err, f.options.Children.Wait())
}
