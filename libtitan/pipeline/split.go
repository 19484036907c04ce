// Package pipeline cuts a model into stages and orders the work of the ranks that run them. It is arithmetic on
// names and numbers alone: [Split] gives each stage its modules, by torchtitan's rule, and [Build] makes a
// schedule, or [ReadCSV] reads one, which [Check] proves and [Simulate] times.
package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Modules lists the modules of a decoder in the order in which they run: tok_embeddings, layers.0 and so on,
// norm, lm_head. They are what a stage is made of; nothing smaller is.
func Modules(numLayers int) []string {
	names := make([]string, 0, numLayers+3)
	names = append(names, "tok_embeddings")
	for i := range numLayers {
		names = append(names, fmt.Sprintf("layers.%d", i))
	}
	return append(names, "norm", "lm_head")
}

// MaxLayers bounds a model; the deepest known have a few hundred layers.
const MaxLayers = 1 << 14

// Cut is how a model is cut into stages.
type Cut struct {
	NumLayers   int
	NumStages   int
	FirstWeight int // layers that the embedding counts for, torchtitan's first_stage_less_layers
	LastWeight  int // layers that norm and head count for, torchtitan's last_stage_less_layers
}

// Split cuts by torchtitan's rule (generate_llm_fqn_per_model_part): with the embedding and the head counted as
// layers, every stage gets the same number, and the earliest get one more where they do not divide. It returns
// the modules of each stage.
func Split(c Cut) ([][]string, error) {
	units := c.NumLayers + c.FirstWeight + c.LastWeight
	switch {
	case c.NumLayers < 1 || c.NumLayers > MaxLayers:
		return nil, fmt.Errorf("split: %d layers: a model has 1 to %d", c.NumLayers, MaxLayers)
	case c.NumStages < 1:
		return nil, fmt.Errorf("split: %d stages: a model has at least 1", c.NumStages)
	case min(c.FirstWeight, c.LastWeight) < 0 || max(c.FirstWeight, c.LastWeight) > MaxLayers:
		return nil, fmt.Errorf("split: first and last stage less %d and %d layers: they must be 0 to %d", c.FirstWeight, c.LastWeight, MaxLayers)
	case c.NumStages == 1:
		return [][]string{Modules(c.NumLayers)}, nil
	case c.NumStages > units:
		return nil, fmt.Errorf("split: %d stages are more than the %d effective layers (%d, and %d + %d for embedding and head): use at most %d stages",
			c.NumStages, units, c.NumLayers, c.FirstWeight, c.LastWeight, units)
	}
	each, extra := units/c.NumStages, units%c.NumStages
	for _, w := range []struct {
		stage  string
		weight int
	}{{"first", c.FirstWeight}, {"last", c.LastWeight}} {
		if w.weight > each {
			return nil, fmt.Errorf("split: %s stage less %d layers, but a stage has %d: use at most %d, or fewer stages", w.stage, w.weight, each, each)
		}
	}
	stages := make([][]string, c.NumStages)
	rest := Modules(c.NumLayers)
	for i := range stages {
		n := each
		if i < extra {
			n++
		}
		if i == 0 {
			n += 1 - c.FirstWeight // the embedding itself
		}
		if i == c.NumStages-1 {
			n = len(rest)
		}
		stages[i], rest = rest[:n:n], rest[n:]
	}
	return stages, nil
}

// NumStages is the number of stages for layersPerStage effective layers each (torchtitan's layers_per_stage),
// which must be a multiple of pp.
func NumStages(numLayers, layersPerStage, pp, firstWeight, lastWeight int) (int, error) {
	if layersPerStage < 1 {
		return 0, fmt.Errorf("split: %d layers per stage: must be at least 1", layersPerStage)
	}
	units := numLayers + firstWeight + lastWeight
	n := (units + layersPerStage - 1) / layersPerStage
	if pp < 1 || n%pp != 0 {
		return 0, fmt.Errorf("split: %d effective layers at %d per stage make %d stages, which do not divide among %d pipeline ranks: choose a number of layers per stage that makes a multiple of %d stages",
			units, layersPerStage, n, pp, pp)
	}
	return n, nil
}

// CheckStages verifies that stages, a list of whole modules each, hold every module of the model once and in
// order. The error names each module that is not known, cut, repeated, missing or out of order.
func CheckStages(stages [][]string, numLayers int) error {
	names := Modules(numLayers)
	known := map[string]bool{}
	for _, name := range names {
		known[name] = true
	}
	stageOf := map[string]int{}
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for i, stage := range stages {
		if len(stage) == 0 {
			fault("stage %d is empty", i)
		}
		for _, fqn := range stage {
			if first, again := stageOf[fqn]; again {
				fault("%s is in stage %d and again in stage %d", plain(fqn), first, i)
				continue
			}
			stageOf[fqn] = i
			if !known[fqn] {
				fault("stage %d: %s", i, notModule(fqn, numLayers))
			}
		}
	}
	for _, name := range names {
		if _, ok := stageOf[name]; !ok {
			fault("%s is in no stage", name)
		}
	}
	if faults == nil && !slices.Equal(slices.Concat(stages...), names) {
		fault("modules are out of order: the model runs %s", strings.Join(names, ", "))
	}
	const most = 8
	if len(faults) > most {
		faults = append(faults[:most], fmt.Errorf("and %d more", len(faults)-most))
	}
	if faults == nil {
		return nil
	}
	return errors.New(strings.ReplaceAll(errors.Join(faults...).Error(), "\n", "; "))
}

// notModule says why fqn is none of the model's modules. Names match by whole parts: layers.1 is no part of layers.10.
func notModule(fqn string, numLayers int) string {
	for _, name := range Modules(numLayers) {
		if strings.HasPrefix(fqn, name+".") {
			return fmt.Sprintf("%s cuts inside %s: stages hold whole modules", plain(fqn), name)
		}
	}
	return fmt.Sprintf("%s is no module of a model of %d layers (tok_embeddings, layers.0 to layers.%d, norm, lm_head)", plain(fqn), numLayers, numLayers-1)
}

// plain is a name as it stands, or quoted and cut where a stranger chose one that would not fit a line.
func plain(name string) string {
	if q := fmt.Sprintf("%.60q", name); q != `"`+name+`"` {
		return q
	}
	return name
}
