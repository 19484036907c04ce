package main

import (
	"cmp"
	"fmt"
	"strings"

	"titan/libtitan/checkpoint"
	"titan/libtitan/manifest"
	"titan/libtitan/optim"
	"titan/tools/internal/app"
)

// goOn makes the next run of m begin where this one ended, which is not the newest step where this one began at an older.
func goOn(m *manifest.Manifest) {
	c := m.Checkpoint
	c.LoadStep, c.ExcludeFromLoading = nil, nil
	if newest, err := checkpoint.FindStep(c.Folder, checkpoint.Latest); err != nil || newest.Number <= m.Training.Steps {
		return
	}
	if _, err := checkpoint.FindStep(c.Folder, m.Training.Steps); err == nil {
		c.LoadStep = &m.Training.Steps
	}
}

// tellGoOn says how to go on from where m has ended: with as many steps again, and with what the command line said of the
// run's own files and lines. It says what becomes of the learning rate where that changes.
func (f *flags) tellGoOn(e *app.Env, m *manifest.Manifest) {
	done := m.Training.Steps
	command := fmt.Sprintf("%s -i %s --steps %d", e.Program, cmp.Or(e.OutFile(), "THIS_MANIFEST"), 2*done)
	for _, kept := range []struct{ flag, value string }{{"--metrics", f.metrics}, {"--log-freq", fmt.Sprint(f.options.LogFreq)}, {"-o", e.OutFile()}} {
		if e.Given(strings.TrimLeft(kept.flag, "-")) && kept.value != "" {
			command += " " + kept.flag + " " + kept.value
		}
	}
	e.Log.Info("go on with: " + command)
	was, now := nextRate(m, done), nextRate(m, 2*done)
	if was != now {
		e.Log.Info(fmt.Sprintf("that lays the learning rate out over %d steps: step %d has %.3g then, and %.3g as it was", 2*done, done+1, now, was))
	}
}

// nextRate is the learning rate of the step after m's last one, in a run of steps.
func nextRate(m *manifest.Manifest, steps int) float64 {
	s, err := optim.NewSchedule(*m.LRScheduler, steps)
	if err != nil {
		return 0 // the run would have been refused
	}
	return m.Optimizer.LR * s.Factor(m.Training.Steps)
}
