package train

import (
	"fmt"
	"os"

	"titan/libtitan/comm"
	"titan/libtitan/comm/nccl"
	"titan/libtitan/device/cuda"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// openGPU takes the GPU of this process: the first, or the one of its place among the ranks of this machine.
func (r *run) openGPU() error {
	index, err := r.gpuIndex()
	if err != nil {
		return err
	}
	d, err := cuda.Open(index)
	if err != nil {
		return err
	}
	if f := r.job.Manifest.Float8; f.On() && 10*d.Major+d.Minor < 89 {
		return exit.Input.Errorf("float8.recipe: %s: %v has no float8 products, which begin with sm_89: set it to off, or use --device cpu", f.Recipe, d)
	}
	leave, err := d.Enter()
	if err != nil {
		return err
	}
	defer leave()
	s, err := d.NewStream(false)
	if err != nil {
		return err
	}
	r.startup.done("driver and context")
	if r.gpu, err = cuda.NewEngine(d, s, cuda.Options{Deterministic: r.Deterministic}); err != nil {
		return err
	}
	r.startup.done("libraries, and the kernels that every model uses")
	r.gauge = newGauge(r.gpu)
	r.Log.Info(fmt.Sprintf("cuda: %v, %s; memory in the lines is %s", d, manifest.HumanBytes(int64(d.TotalBytes)), r.gauge.what))
	return nil
}

// gpuIndex is which GPU of those that the process sees is its own. A launcher may show each process its own alone.
func (r *run) gpuIndex() (int, error) {
	if r.Comm != "nccl" {
		return 0, nil
	}
	if err := nccl.Connections(r.Log); err != nil {
		return 0, err
	}
	l, err := comm.Launched(os.Getenv)
	if err != nil {
		return 0, err
	}
	if n, err := cuda.Count(); err != nil || n == 1 {
		return 0, err
	}
	return l.LocalRank, nil
}

// me is the rank that this process is, 0 where it is all of them.
func (r *run) me() (int, error) {
	if !r.apart() {
		return 0, nil
	}
	l, err := comm.Launched(os.Getenv)
	return l.Rank, err
}

// fitsGPU refuses a job that needs more memory than the device has left.
func (r *run) fitsGPU() error {
	me, err := r.me()
	if err != nil {
		return err
	}
	prog, err := r.program(me)
	if err != nil {
		return err
	}
	r.programs[me] = prog
	if err := r.fitsCopies(me, procField("/proc/meminfo", "MemAvailable:")); err != nil {
		return err
	}
	need := int64(prog.PlannedBytes()) // gradients included
	for _, h := range r.job.Held(me) {
		need += 12 * h.NumElements()
	}
	leave, err := r.gpu.Enter()
	if err != nil {
		return err
	}
	defer leave()
	r.Log.Debug(fmt.Sprintf("plan: needs %.2fGiB of the GPU: %.2f for parameters, moments and copies, %.2f for the step, %.2f for what is computed once a step",
		gib(need), gib(need-int64(prog.ArenaBytes+prog.WindowBytes+prog.ConstBytes)), gib(int64(prog.ArenaBytes+prog.WindowBytes)), gib(int64(prog.ConstBytes))))
	free, _, err := r.gpu.MemInfo()
	if err == nil && need > int64(free) {
		err = exit.Input.Errorf("memory: the step needs %s, %s has %s left: plan a smaller model, sequence or batch, or checkpoint activations", manifest.HumanBytes(need), r.gpu.Name, manifest.HumanBytes(int64(free)))
	}
	return err
}

func gib(bytes int64) float64 { return float64(bytes) / (1 << 30) }
