package pipeline

import (
	"fmt"
	"strings"
)

// Kind is what an action does to a microbatch.
type Kind byte

// The kinds, with the letters they have in a schedule CSV. A full backward B is an I and a W in one.
const (
	Forward    Kind = 'F'
	Backward   Kind = 'B'
	InputGrad  Kind = 'I'
	WeightGrad Kind = 'W'
)

// Action is one piece of a rank's work.
type Action struct {
	Stage      int
	Kind       Kind
	Microbatch int
}

// String is the action as a schedule CSV has it: 0F0, 3B12.
func (a Action) String() string { return fmt.Sprintf("%d%c%d", a.Stage, a.Kind, a.Microbatch) }

// Schedule is the order of every pipeline rank's work.
type Schedule struct {
	Name            string
	NumStages       int
	NumMicrobatches int
	Ranks           [][]Action // by pp rank
}

// builder makes the actions of one rank that runs one stage.
type builder func(stage, numStages, numMicrobatches int) []Action

// singles are the schedules with one stage a rank.
var singles = []struct {
	name  string
	build builder
}{
	{"GPipe", gpipe},
	{"1F1B", oneFOneB},
}

// Names lists the schedules that Build knows.
func Names() []string {
	var names []string
	for _, s := range singles {
		names = append(names, s.name)
	}
	return names
}

// Canonical is the spelling in Names of name, which may be in any case.
func Canonical(name string) (string, error) {
	for _, known := range Names() {
		if strings.EqualFold(known, name) {
			return known, nil
		}
	}
	return "", fmt.Errorf("schedule %q is not among %s", name, strings.Join(Names(), ", "))
}

// maxActions bounds a schedule: 64 stages of 8192 microbatches.
const maxActions = 1 << 20

// Build makes the schedule called name, in any case, for pp ranks. Any number of microbatches will do, fewer than
// stages too: the ranks then wait longer.
func Build(name string, pp, numMicrobatches int) (*Schedule, error) {
	name, err := Canonical(name)
	if err != nil {
		return nil, err
	}
	if pp < 1 || numMicrobatches < 1 {
		return nil, fmt.Errorf("schedule %s: %d pipeline ranks and %d microbatches: both must be at least 1", name, pp, numMicrobatches)
	}
	if pp > maxActions || numMicrobatches > maxActions || 2*pp*numMicrobatches > maxActions {
		return nil, fmt.Errorf("schedule %s: %d pipeline ranks and %d microbatches make more than %d actions", name, pp, numMicrobatches, maxActions)
	}
	s := &Schedule{Name: name, NumStages: pp, NumMicrobatches: numMicrobatches}
	for _, single := range singles {
		for stage := 0; single.name == name && stage < pp; stage++ {
			s.Ranks = append(s.Ranks, single.build(stage, pp, numMicrobatches))
		}
	}
	return s, nil
}

// gpipe runs all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965).
func gpipe(stage, _, numMicrobatches int) []Action {
	var actions []Action
	for m := range numMicrobatches {
		actions = append(actions, Action{stage, Forward, m})
	}
	for m := range numMicrobatches {
		actions = append(actions, Action{stage, Backward, m})
	}
	return actions
}

// oneFOneB fills the pipe, then takes a backward after each forward, so that a stage holds the activations of at
// most as many microbatches as there are stages from it to the end (PipeDream-Flush, arXiv 2006.09503).
func oneFOneB(stage, numStages, numMicrobatches int) []Action {
	var actions []Action
	warmup := min(numMicrobatches, numStages-stage)
	for m := range warmup {
		actions = append(actions, Action{stage, Forward, m})
	}
	for m := range numMicrobatches {
		actions = append(actions, Action{stage, Backward, m})
		if next := m + warmup; next < numMicrobatches {
			actions = append(actions, Action{stage, Forward, next})
		}
	}
	return actions
}

// LoopRank is the rank of stage in loop order: rank r runs r, r+pp, r+2pp and so on. With one stage a rank it is
// the stage itself.
func LoopRank(stage, pp int) int { return stage % pp }

// VRank is the rank of stage in V order, two stages a rank: rank r runs r and 2pp-1-r.
func VRank(stage, pp int) int { return min(stage, 2*pp-1-stage) }
