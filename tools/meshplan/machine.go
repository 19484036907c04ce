package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

// machine is the flags that say what a job runs on.
type machine struct {
	gpu, hardware string
	software      string
	memory        int64
	gpusPerNode   int
	open          opener
}

// opener opens the file that a flag names.
type opener func(path string) (io.ReadCloser, error)

func (h *machine) flags() []cli.Flag {
	return []cli.Flag{
		app.GPU(&h.gpu, "a `NAME` from meshplan gpus"),
		app.Text(&h.hardware, "describe the GPU and its links by `FILE`, as titan-run bench writes it, or a JSON object as meshplan gpus --json prints them", "hardware"),
		app.Choice(&h.software, estimate.Runtimes(), "whose kernels and steps are timed (default: the hardware's, else torchtitan)", "software"),
		app.Bytes(&h.memory, "memory that the job may take of a GPU, or of a machine whose ranks share it (default: all)", "memory"),
		app.Count(&h.gpusPerNode, "GPUs of a node (default: the GPU's)", "gpus-per-node"),
	}
}

// read is the machine that is meant.
func (h *machine) read(given func(string) bool) (m estimate.Machine, err error) {
	switch {
	case given("gpu") && given("hardware"):
		return m, exit.Usage.Errorf("--gpu and --hardware exclude each other")
	case h.hardware != "":
		m, err = readHardware(h.open, h.hardware)
	default:
		m, err = estimate.FindMachine(h.gpu)
	}
	if err != nil {
		return m, err
	}
	if given("gpus-per-node") {
		if h.gpusPerNode < 1 {
			return m, exit.Usage.Errorf("--gpus-per-node %d: must be at least 1", h.gpusPerNode)
		}
		m.GPUsPerNode = h.gpusPerNode
	}
	if given("memory") {
		if h.memory < 1<<20 {
			return m, exit.Usage.Errorf("--memory %d: so many bytes are no GPU's: give the unit too, as in 80GiB", h.memory)
		}
		m.MemoryBytes = h.memory
	}
	if given("software") {
		m.Software.Runtime = h.software
	}
	return m, nil
}

func readHardware(open opener, path string) (m estimate.Machine, err error) {
	f, err := open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	if m, err = estimate.ReadMachine(f); err != nil {
		return m, exit.Input.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// gpusVerb lists the machines known by name.
func gpusVerb() app.Verb {
	asJSON := false
	return app.Verb{
		Name: "gpus", Usage: "list the GPUs known by name",
		Flags: []cli.Flag{app.Switch(&asJSON, "print a JSON list, each as --hardware reads it", "json")},
		Run: func(_ context.Context, e *app.Env) error {
			all, err := estimate.Machines()
			if err != nil {
				return err
			}
			if asJSON {
				return app.WriteJSON(e.Out, all)
			}
			t := app.Table(e.Out)
			fmt.Fprintln(t, "NAME\tMEMORY\tBF16 TFLOP/S\tFP8 TFLOP/S\tMEMORY GB/S\tNODE GB/S\tNETWORK GB/S\tGPUS A NODE\tWHAT")
			for _, m := range all {
				fmt.Fprintf(t, "%s\t%s\t%g\t%g\t%g\t%g\t%g\t%d\t%s\n", m.Name, manifest.HumanBytes(m.MemoryBytes), m.BF16TFLOPS, m.FP8TFLOPS, m.MemoryGBps, m.NodeGBps, m.NetworkGBps, m.GPUsPerNode, m.About)
			}
			return t.Flush()
		},
	}
}
