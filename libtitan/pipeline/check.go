package pipeline

import (
	"errors"
	"fmt"
)

// Check proves that s can be run and does all the work: every stage is on one rank, takes each microbatch forward
// once and then backward once (a B, or an I and a later W), and nobody waits for ever when a result is kept for
// its taker until the taker comes. The error, nil if all is well, names rank, column (from 0) and action.
func Check(s *Schedule) error {
	for _, check := range []func(*Schedule) error{checkActions, checkOrder} {
		if err := check(s); err != nil {
			return fmt.Errorf("schedule %s: %w", s.Name, err)
		}
	}
	_, err := Simulate(s, Ticks())
	return err
}

// places holds where in its rank's list each action that s could have stands, counted from 1; 0 is nowhere.
// Actions must be in range.
type places struct {
	s  *Schedule
	at []int32 // by stage, microbatch and kind
}

var kindNumber = map[Kind]int{Forward: 0, Backward: 1, InputGrad: 2, WeightGrad: 3}

func newPlaces(s *Schedule) places {
	return places{s, make([]int32, len(kindNumber)*s.NumStages*s.NumMicrobatches)}
}

func (p places) of(a Action) *int32 {
	return &p.at[(a.Stage*p.s.NumMicrobatches+a.Microbatch)*len(kindNumber)+kindNumber[a.Kind]]
}

func inBounds(numStages, numMicrobatches int) error {
	if min(numStages, numMicrobatches) < 0 || max(numStages, numMicrobatches) > maxActions || numStages*numMicrobatches > maxActions {
		return fmt.Errorf("%d stages of %d microbatches are more than %d actions", numStages, numMicrobatches, maxActions)
	}
	return nil
}

// inRange says what of s cannot be looked up in a table.
func inRange(s *Schedule) error {
	if err := inBounds(s.NumStages, s.NumMicrobatches); err != nil {
		return err
	}
	if len(s.StageRank) != s.NumStages {
		return fmt.Errorf("%d stages have a rank, of %d", len(s.StageRank), s.NumStages)
	}
	for stage, rank := range s.StageRank {
		if rank < 0 || rank >= len(s.Ranks) {
			return fmt.Errorf("stage %d is on rank %d of %d", stage, rank, len(s.Ranks))
		}
	}
	for rank, actions := range s.Ranks {
		for i, a := range actions {
			if _, ok := kindNumber[a.Kind]; !ok {
				return fmt.Errorf("%s: %v: kind %s is none of F, B, I, W", s.place(rank, i), a, a.Kind)
			}
			if a.Stage < 0 || a.Stage >= s.NumStages || a.Microbatch < 0 || a.Microbatch >= s.NumMicrobatches {
				return fmt.Errorf("%s: %v: there are %d stages and %d microbatches", s.place(rank, i), a, s.NumStages, s.NumMicrobatches)
			}
		}
		if n := len(actions); n > 0 && actions[n-1].WithNext {
			return fmt.Errorf("%s: %v: nothing follows that it could be grouped with", s.place(rank, n-1), actions[n-1])
		}
	}
	return nil
}

// checkActions looks at each action by itself, and for two of a kind.
func checkActions(s *Schedule) error {
	if err := inRange(s); err != nil {
		return err
	}
	seen := newPlaces(s)
	for rank, actions := range s.Ranks {
		for i, a := range actions {
			if home := s.StageRank[a.Stage]; home != rank {
				return fmt.Errorf("%s: %v: stage %d is on rank %d too", s.place(rank, i), a, a.Stage, home)
			}
			p := seen.of(a)
			if *p > 0 {
				return fmt.Errorf("%s: %v: done before, in column %d", s.place(rank, i), a, s.column(rank, int(*p)-1))
			}
			*p = int32(i + 1)
		}
	}
	return nil
}

// checkOrder looks at the actions of one stage and microbatch: F, then B, or I and W.
func checkOrder(s *Schedule) error {
	at := newPlaces(s)
	for _, actions := range s.Ranks {
		for i, a := range actions {
			*at.of(a) = int32(i + 1)
		}
	}
	var faults []error
	for stage := range s.NumStages {
		for m := range s.NumMicrobatches {
			if err := checkOne(at, stage, m); err != nil {
				faults = append(faults, err)
			}
			if len(faults) == 3 {
				return joined(faults)
			}
		}
	}
	return joined(faults)
}

func joined(errs []error) error {
	if len(errs) < 2 {
		return errors.Join(errs...)
	}
	return fmt.Errorf("%w; %w", errs[0], joined(errs[1:]))
}

func checkOne(at places, stage, m int) error {
	get := func(k Kind) (i int, ok bool) {
		i = int(*at.of(Action{Stage: stage, Kind: k, Microbatch: m})) - 1
		return i, i >= 0
	}
	f, hasF := get(Forward)
	b, hasB := get(Backward)
	i, hasI := get(InputGrad)
	w, hasW := get(WeightGrad)
	rank := at.s.StageRank[stage]
	fault := func(i int, k Kind, why string) error {
		return fmt.Errorf("%s: %v: %s", at.s.place(rank, i), Action{Stage: stage, Kind: k, Microbatch: m}, why)
	}
	twice := func(i int, k Kind) error {
		return fault(i, k, fmt.Sprintf("the full backward in column %d has done it", at.s.column(rank, b)))
	}
	missing := func(what string) error {
		return fmt.Errorf("rank %d: stage %d, microbatch %d has no %s", rank, stage, m, what)
	}
	switch {
	case !hasF:
		return missing("forward")
	case hasB && hasI:
		return twice(i, InputGrad)
	case hasB && hasW:
		return twice(w, WeightGrad)
	case !hasB && !hasI && !hasW:
		return missing("backward")
	case !hasB && !hasI:
		return fault(w, WeightGrad, "its input gradient is missing")
	case hasI && !hasW:
		return fault(i, InputGrad, fmt.Sprintf("stage %d never gets the weight gradient of microbatch %d", stage, m))
	case hasB && b < f:
		return fault(b, Backward, "comes before its forward")
	case hasI && i < f:
		return fault(i, InputGrad, "comes before its forward")
	case hasI && w < i:
		return fault(w, WeightGrad, "comes before its input gradient")
	}
	return nil
}
