package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// options are the command line.
type options struct {
	schedule       string
	csvFile        string
	microbatches   int
	stagesPerRank  int
	layersPerStage int
	first, last    int // layers that the embedding and the head count for
	balance        string
	fqnsFile       string
	plot           string
	layers, stages int // without a manifest

	given    func(flag string) bool
	open     opener
	timeline *pipeline.Timeline // of the schedule, by fill
}

func defaults() *options {
	return &options{first: 1, last: 1, balance: "layers"}
}

func (o *options) flags() []cli.Flag {
	return []cli.Flag{
		app.Choice(&o.schedule, pipeline.Names(), "order of the stages' work (default: the manifest's, else 1F1B)", "schedule"),
		app.Text(&o.csvFile, "take the order of work, and each stage's rank, from `FILE`: PyTorch's schedule CSV", "schedule-csv"),
		app.Count(&o.microbatches, "microbatches of a local batch (default: the manifest's, else one a row)", "microbatches"),
		app.Count(&o.stagesPerRank, "stages of a pipeline rank (default: the manifest's, else the fewest that the schedule allows)", "stages-per-rank"),
		app.Count(&o.layersPerStage, "effective layers of a stage, to find the number of stages", "layers-per-stage"),
		app.Count(&o.first, "layers that the first stage has less", "first-stage-less-layers"),
		app.Count(&o.last, "layers that the last stage has less", "last-stage-less-layers"),
		app.Choice(&o.balance, []string{"layers", "cost", "memory"}, "what stages have equally much of: layers by torchtitan's rule; cost makes the slowest stage fastest by FLOPs; memory makes the fullest smallest", "balance"),
		app.Text(&o.fqnsFile, "take the stages from `FILE`: a JSON list of lists of module names", "fqns"),
		app.Text(&o.plot, "draw the schedule into `FILE`.svg or FILE.png", "plot"),
		app.Count(&o.layers, "split a model of `N` layers, without a manifest", "layers"),
		app.Count(&o.stages, "into `N` stages, without a manifest", "stages"),
	}
}

// cut makes the stages: those of the file, or by the rule, numStages of them unless --layers-per-stage says how many.
func (o *options) cut(layers, numStages, pp int) ([][]string, error) {
	if o.fqnsFile != "" {
		stages, err := readFQNs(o.open, o.fqnsFile)
		if err == nil {
			err = pipeline.CheckStages(stages, layers)
		}
		if err != nil {
			return nil, exit.Input.Errorf("%s: %w", o.fqnsFile, err)
		}
		return stages, nil
	}
	if o.layersPerStage != 0 {
		n, err := pipeline.NumStages(layers, o.layersPerStage, pp, o.first, o.last)
		if err != nil {
			return nil, exit.Input.Wrap(err)
		}
		numStages = n
	}
	stages, err := pipeline.Split(pipeline.Cut{NumLayers: layers, NumStages: numStages, FirstWeight: o.first, LastWeight: o.last})
	return stages, exit.Input.Wrap(err)
}

// opener opens the file that a flag names.
type opener func(path string) (io.ReadCloser, error)

const maxFQNsBytes = 4 << 20

func readFQNs(open opener, path string) ([][]string, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFQNsBytes+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFQNsBytes {
		return nil, fmt.Errorf("larger than %d MiB", maxFQNsBytes>>20)
	}
	var stages [][]string
	if err := json.Unmarshal(data, &stages); err != nil {
		return nil, fmt.Errorf("want a JSON list of lists of module names: %w", err)
	}
	return stages, nil
}

// standalone prints the stages of a model of --layers layers.
func standalone(e *app.Env, o *options) error {
	if o.balance != "layers" || o.plot != "" {
		return exit.Usage.Errorf("--balance and --plot need a manifest: layers alone have no cost and no schedule")
	}
	if o.layers == 0 || o.stages == 0 && o.fqnsFile == "" {
		return exit.Usage.Errorf("--layers and --stages go together (or give a manifest)")
	}
	stages, err := o.cut(o.layers, o.stages, 1)
	if err != nil {
		return err
	}
	type stage struct {
		Stage  int      `json:"stage"`
		PPRank int      `json:"pp_rank"`
		FQNs   []string `json:"fqns"`
	}
	var list []stage
	for i, fqns := range stages {
		list = append(list, stage{i, pipeline.LoopRank(i, len(stages)), fqns})
	}
	return e.WriteOut(func(w io.Writer) error { return app.WriteJSON(w, list) })
}
