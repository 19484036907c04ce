package pipeline

import (
	"errors"
	"fmt"
	"strings"
)

// Check proves that s can be run and does all the work: every stage is on one rank, takes each microbatch forward
// once and then backward once (a B, or an I and a later W), every rank receives in the order in which the other
// sends, and nobody waits for ever. The error, nil if all is well, names rank, column (from 0) and action.
func Check(s *Schedule) error {
	for _, check := range []func(*Schedule) error{checkActions, checkOrder, checkChannels} {
		if err := check(s); err != nil {
			return fmt.Errorf("schedule %s: %w", s.Name, err)
		}
	}
	_, err := Simulate(s)
	return err
}

// place is where an action stands; column is one more, so that the zero place is nowhere.
type place struct{ rank, column int }

// places holds the place of every action that s could have. Actions must be in range.
type places struct {
	s  *Schedule
	at []place // by stage, microbatch and kind
}

const kinds = "FBIW"

func newPlaces(s *Schedule) places {
	return places{s, make([]place, len(kinds)*s.NumStages*s.NumMicrobatches)}
}

func (p places) of(a Action) *place {
	return &p.at[(a.Stage*p.s.NumMicrobatches+a.Microbatch)*len(kinds)+strings.IndexByte(kinds, byte(a.Kind))]
}

// inRange says what of s cannot be looked up in a table.
func inRange(s *Schedule) error {
	if s.NumStages < 0 || s.NumMicrobatches < 0 || s.NumStages > maxActions || s.NumMicrobatches > maxActions || s.NumStages*s.NumMicrobatches > maxActions {
		return fmt.Errorf("%d stages of %d microbatches are more than %d actions", s.NumStages, s.NumMicrobatches, maxActions)
	}
	for rank, actions := range s.Ranks {
		for column, a := range actions {
			if a.Stage < 0 || a.Stage >= s.NumStages || a.Microbatch < 0 || a.Microbatch >= s.NumMicrobatches {
				return fmt.Errorf("rank %d, column %d: %v: there are %d stages and %d microbatches", rank, column, a, s.NumStages, s.NumMicrobatches)
			}
			if strings.IndexByte(kinds, byte(a.Kind)) < 0 {
				return fmt.Errorf("rank %d, column %d: %v: kind %c is none of F, B, I, W", rank, column, a, a.Kind)
			}
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
	rankOf := map[int]int{}
	for rank, actions := range s.Ranks {
		for column, a := range actions {
			if first, ok := rankOf[a.Stage]; ok && first != rank {
				return fmt.Errorf("rank %d, column %d: %v: stage %d is on rank %d too", rank, column, a, a.Stage, first)
			}
			rankOf[a.Stage] = rank
			p := seen.of(a)
			if p.column > 0 {
				return fmt.Errorf("rank %d, column %d: %v: done before, in column %d", rank, column, a, p.column-1)
			}
			*p = place{rank, column + 1}
		}
	}
	return nil
}

// checkOrder looks at the actions of one stage and microbatch: F, then B, or I and W.
func checkOrder(s *Schedule) error {
	at := newPlaces(s)
	for rank, actions := range s.Ranks {
		for column, a := range actions {
			*at.of(a) = place{rank, column + 1}
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
	get := func(k Kind) (place, bool) {
		p := *at.of(Action{stage, k, m})
		p.column--
		return p, p.column >= 0
	}
	f, hasF := get(Forward)
	b, hasB := get(Backward)
	i, hasI := get(InputGrad)
	w, hasW := get(WeightGrad)
	fault := func(p place, k Kind, why string) error {
		return fmt.Errorf("rank %d, column %d: %v: %s", p.rank, p.column, Action{stage, k, m}, why)
	}
	switch {
	case !hasF:
		return fmt.Errorf("stage %d, microbatch %d has no forward", stage, m)
	case hasB && hasI:
		return fault(i, InputGrad, fmt.Sprintf("the full backward in column %d has done it", b.column))
	case hasB && hasW:
		return fault(w, WeightGrad, fmt.Sprintf("the full backward in column %d has done it", b.column))
	case !hasB && !hasI:
		return fmt.Errorf("stage %d, microbatch %d has no backward", stage, m)
	case hasI && !hasW:
		return fault(i, InputGrad, fmt.Sprintf("stage %d never gets the weight gradient of microbatch %d", stage, m))
	case hasB && b.column < f.column:
		return fault(b, Backward, "comes before its forward")
	case hasI && i.column < f.column:
		return fault(i, InputGrad, "comes before its forward")
	case hasI && w.column < i.column:
		return fault(w, WeightGrad, "comes before its input gradient")
	}
	return nil
}

// channel is what one rank sends another.
type channel struct{ from, to int }

// checkChannels verifies that each rank takes what another sends in the order in which it is sent: channels
// between ranks deliver in order.
func checkChannels(s *Schedule) error {
	rankOf := s.StageRanks()
	sent, taken := map[channel][]Action{}, map[channel][]Action{}
	for rank, actions := range s.Ranks {
		for _, a := range actions {
			if next, ok := sendsTo(a, s.NumStages); ok && rankOf[next.Stage] != rank {
				c := channel{rank, rankOf[next.Stage]}
				sent[c] = append(sent[c], a)
			}
			if prev, ok := needs(a, s.NumStages); ok && rankOf[prev.Stage] != rank {
				c := channel{rankOf[prev.Stage], rank}
				taken[c] = append(taken[c], prev)
			}
		}
	}
	for c, actions := range sent {
		for i, a := range actions {
			if want := taken[c][i]; a.Stage != want.Stage || a.Microbatch != want.Microbatch || (a.Kind == Forward) != (want.Kind == Forward) {
				return fmt.Errorf("rank %d sends %v when rank %d waits for %v: send in the order in which they are taken", c.from, a, c.to, want)
			}
		}
	}
	return nil
}

// sendsTo is the action on the neighbouring stage that waits for a's result.
func sendsTo(a Action, numStages int) (Action, bool) {
	switch {
	case a.Kind == Forward && a.Stage+1 < numStages:
		return Action{a.Stage + 1, Forward, a.Microbatch}, true
	case (a.Kind == Backward || a.Kind == InputGrad) && a.Stage > 0:
		return Action{a.Stage - 1, Backward, a.Microbatch}, true
	}
	return Action{}, false
}

// needs is the action on the neighbouring stage whose result a waits for; for a backward, B stands for I as well.
func needs(a Action, numStages int) (Action, bool) {
	switch {
	case a.Kind == Forward && a.Stage > 0:
		return Action{a.Stage - 1, Forward, a.Microbatch}, true
	case (a.Kind == Backward || a.Kind == InputGrad) && a.Stage+1 < numStages:
		return Action{a.Stage + 1, Backward, a.Microbatch}, true
	}
	return Action{}, false
}

// StageRanks maps each stage to the rank whose actions hold it.
func (s *Schedule) StageRanks() []int {
	ranks := make([]int, s.NumStages)
	for rank, actions := range s.Ranks {
		for _, a := range actions {
			if a.Stage >= 0 && a.Stage < s.NumStages {
				ranks[a.Stage] = rank
			}
		}
	}
	return ranks
}
