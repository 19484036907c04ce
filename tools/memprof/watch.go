package main

import (
	"context"
	"encoding/csv"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"titan/libtitan/device/nvml"
	"titan/tools/internal/app"
)

// watchFlags say what is sampled, and how often.
type watchFlags struct{ pid, milliseconds, samples int }

func (f *watchFlags) flags() []cli.Flag {
	f.milliseconds = 1000
	return []cli.Flag{
		app.AtLeast(&f.pid, 0, "add the bytes of process `PID`", "pid"),
		app.AtLeast(&f.milliseconds, 1, "sample every `N` milliseconds", "interval"),
		app.AtLeast(&f.samples, 0, "stop after `N` samples (default: go on)", "samples"),
	}
}

// watch prints a line of CSV a GPU and sample, until ctx ends.
func watch(ctx context.Context, e *app.Env, f *watchFlags) error {
	library, err := nvml.Open()
	if err != nil {
		return err
	}
	defer library.Close()
	w := csv.NewWriter(e.Out)
	w.Write([]string{"seconds", "gpu", "name", "used_bytes", "total_bytes", "utilization_percent", "process_bytes"})
	began := time.Now()
	for i := 0; f.samples == 0 || i < f.samples; i++ {
		gpus, err := library.Sample()
		if err != nil {
			return err
		}
		for _, g := range gpus {
			w.Write([]string{
				strconv.FormatFloat(time.Since(began).Seconds(), 'f', 3, 64), strconv.Itoa(g.Index), g.Name, strconv.FormatUint(g.UsedBytes, 10),
				strconv.FormatUint(g.TotalBytes, 10), strconv.Itoa(g.Utilization), strconv.FormatUint(g.ProcessUsed[f.pid], 10),
			})
		}
		if w.Flush(); w.Error() != nil {
			return w.Error()
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(f.milliseconds) * time.Millisecond):
		}
	}
	return nil
}
