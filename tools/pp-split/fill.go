package main

import (
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
)

// fill writes the pipeline section of m.
func (o *options) fill(m *manifest.Manifest) error {
	if m.Model == nil || m.Mesh == nil || m.Training == nil || m.Mesh.Dims.PP < 1 {
		return nil // Validate says so
	}
	if o.fqnsFile != "" && o.balance != "layers" {
		return exit.Usage.Errorf("--fqns and --balance %s exclude each other", o.balance)
	}
	was, pp := m.Pipeline, m.Mesh.Dims.PP
	var err error
	if m.Pipeline, err = o.order(m); err != nil {
		return err
	}
	numStages, err := o.numStages(m, was)
	if err != nil {
		return err
	}
	stages, err := o.cut(m.Model.Config.NumLayers, numStages, pp)
	if err == nil && o.balance != "layers" {
		stages, err = o.even(m, len(stages))
	}
	if err != nil {
		return err
	}
	if len(stages)%pp != 0 {
		return exit.Input.Errorf("%d stages do not divide among %d pipeline ranks", len(stages), pp)
	}
	for i, fqns := range stages {
		m.Pipeline.Stages = append(m.Pipeline.Stages, manifest.Stage{Stage: i, FQNs: fqns, NumParams: m.Model.Config.StageParams(fqns)})
	}
	return o.place(m)
}

// order settles what the ranks do in what order: by the flags, else as m has it.
func (o *options) order(m *manifest.Manifest) (*manifest.Pipeline, error) {
	p := &manifest.Pipeline{Schedule: "1F1B", NumMicrobatches: m.Training.LocalBatchSize}
	if m.Mesh.Dims.PP == 1 {
		p.NumMicrobatches = 1
	}
	if was := m.Pipeline; was != nil {
		p.Schedule, p.NumMicrobatches, p.Actions = was.Schedule, was.NumMicrobatches, was.Actions
	}
	if o.given("schedule") {
		p.Schedule, p.Actions = o.schedule, nil
	}
	if o.given("microbatches") {
		p.NumMicrobatches = o.microbatches
	}
	if o.csvFile == "" {
		return p, nil
	}
	if o.given("schedule") {
		return nil, exit.Usage.Errorf("--schedule and --schedule-csv exclude each other")
	}
	s, err := readCSV(o.open, o.csvFile)
	if err != nil {
		return nil, err
	}
	if o.given("microbatches") && o.microbatches != s.NumMicrobatches {
		return nil, exit.Input.Errorf("%s: it has %d microbatches: leave --microbatches %d out", o.csvFile, s.NumMicrobatches, o.microbatches)
	}
	p.Schedule, p.NumMicrobatches, p.Actions = pipeline.CSV, s.NumMicrobatches, nil
	for _, actions := range s.Ranks {
		p.Actions = append(p.Actions, strings.Join(pipeline.Cells(actions), ","))
	}
	return p, nil
}

func readCSV(open opener, path string) (*pipeline.Schedule, error) {
	f, err := open(path)
	if err != nil {
		return nil, exit.Input.Wrap(err)
	}
	defer f.Close()
	s, err := pipeline.ReadCSV(f)
	if err != nil {
		return nil, exit.Input.Errorf("%s: %w", path, err)
	}
	return s, nil
}

// numStages is how many stages to cut where neither --fqns nor --layers-per-stage says it.
func (o *options) numStages(m *manifest.Manifest, was *manifest.Pipeline) (int, error) {
	p, pp := m.Pipeline, m.Mesh.Dims.PP
	if o.stagesPerRank != 0 && o.layersPerStage != 0 {
		return 0, exit.Usage.Errorf("--stages-per-rank and --layers-per-stage exclude each other")
	}
	if p.Schedule == pipeline.CSV {
		s, err := m.Schedule()
		if err != nil {
			return 0, exit.Input.Wrap(err)
		}
		if v := s.NumStages / pp; o.stagesPerRank != 0 && o.stagesPerRank != v {
			return 0, exit.Input.Errorf("schedule %s has %d stages a rank, not %d", s.Name, v, o.stagesPerRank)
		}
		return s.NumStages, nil
	}
	if o.layersPerStage != 0 || o.fqnsFile != "" {
		return 0, nil
	}
	perRank := o.stagesPerRank
	if perRank == 0 && was != nil && was.Schedule == p.Schedule {
		perRank = len(was.Stages) / pp
	}
	rankOf, err := pipeline.StageRank(p.Schedule, pp, perRank, p.NumMicrobatches)
	return len(rankOf), exit.Input.Wrap(err)
}

// place gives the stages their ranks, and times the schedule.
func (o *options) place(m *manifest.Manifest) error {
	p := m.Pipeline
	s, err := m.Schedule()
	if err != nil {
		return exit.Input.Wrap(err)
	}
	if len(p.Stages) != s.NumStages {
		return exit.Input.Errorf("%d stages, but schedule %s has %d", len(p.Stages), s.Name, s.NumStages)
	}
	for i, rank := range s.StageRank {
		p.Stages[i].PPRank = rank
	}
	if o.timeline, err = pipeline.Simulate(s, pipeline.Ticks()); err != nil {
		return exit.Input.Wrap(err)
	}
	p.Bubble = o.timeline.Bubble
	return nil
}
