package main

import (
	"fmt"
	"io"
	"slices"

	"titan/libtitan/estimate"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// even cuts m into numStages stages by --balance.
func (o *options) even(m *manifest.Manifest, numStages int) ([][]string, error) {
	w, err := weigh(m, o.balance, numStages)
	if err != nil {
		return nil, exit.Input.Wrap(err)
	}
	stages, _, err := pipeline.Balance(m.Model.Config.NumLayers, numStages, w)
	return stages, exit.Input.Wrap(err)
}

// weigh is what the parts of m's model weigh in numStages stages: FLOPs of a token, or a GPU's bytes with what its
// schedule has in flight.
func weigh(m *manifest.Manifest, balance string, numStages int) (w pipeline.Weights, err error) {
	p, pp := m.Pipeline, m.Mesh.Dims.PP
	j := estimate.Settings(m)
	if balance != "memory" {
		return pipeline.Weights{Fixed: j.FlopWeights()}, nil
	}
	s := &pipeline.Schedule{}
	if p.Schedule == pipeline.CSV {
		s, err = m.Schedule()
	} else {
		s, err = pipeline.Build(p.Schedule, pp, numStages/pp, p.NumMicrobatches)
	}
	if err != nil {
		return w, err
	}
	line, err := pipeline.Simulate(s, pipeline.Ticks())
	if err != nil {
		return w, err
	}
	w.Fixed, w.Held = j.ByteWeights()
	w.InFlight = line.InFlight
	return w, nil
}

// reportBalance says how even m's stages are.
func reportBalance(w io.Writer, m *manifest.Manifest) error {
	var stages [][]string
	for _, s := range m.Pipeline.Stages {
		stages = append(stages, s.FQNs)
	}
	for _, by := range []struct {
		balance, words string
		human          func(int64) string
	}{
		{"cost", "slowest stage: %s FLOPs a token, max/mean %.3f\n", app.Grouped},
		{"memory", "fullest stage: %s before buffers and fragments, max/mean %.3f\n", func(n int64) string {
			return fmt.Sprintf("%s bytes (%s)", app.Grouped(n), manifest.HumanBytes(n))
		}},
	} {
		weights, err := weigh(m, by.balance, len(stages))
		if err != nil {
			return err
		}
		of := pipeline.StageWeights(stages, weights)
		fmt.Fprintf(w, by.words, by.human(slices.Max(of)), pipeline.Uneven(of))
	}
	return nil
}
