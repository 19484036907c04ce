package pipeline

import (
	"fmt"
	"strings"
)

// Timeline is what a schedule takes when every action lasts one tick and a result arrives at once.
type Timeline struct {
	Makespan int     // ticks from the first action to the end of the last
	Bubble   float64 // share of the ranks' time that they idle
	Start    [][]int // tick at which each rank's actions start
	InFlight []int   // by stage: most microbatches between their forward and the end of their backward
}

// Simulate runs s: each rank takes its actions in order, one starting when the rank is free and what it needs has
// arrived; a result is kept for its taker, so that sending never waits. The error says who waits for what when
// nobody can go on.
func Simulate(s *Schedule) (*Timeline, error) {
	if err := inRange(s); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	end := newEnds(s)
	next := make([]int, len(s.Ranks))
	free := make([]int, len(s.Ranks))
	t := &Timeline{Start: make([][]int, len(s.Ranks))}
	total, done := 0, 0
	for _, actions := range s.Ranks {
		total += len(actions)
	}
	for moved := true; moved; {
		moved = false
		for rank, actions := range s.Ranks {
			for next[rank] < len(actions) {
				a := actions[next[rank]]
				start, ok := end.ready(a, free[rank])
				if !ok {
					break
				}
				free[rank] = start + 1
				*end.of(a) = start + 1
				t.Start[rank] = append(t.Start[rank], start)
				t.Makespan = max(t.Makespan, start+1)
				next[rank]++
				done++
				moved = true
			}
		}
	}
	if done < total {
		return nil, deadlock(s, next)
	}
	if t.Makespan > 0 {
		ticks := len(s.Ranks) * t.Makespan
		t.Bubble = float64(ticks-total) / float64(ticks)
	}
	t.InFlight = inFlight(s)
	return t, nil
}

// ends holds the tick at which each action ended, 0 for one that has not run. An I stands in for the B whose
// place it takes.
type ends struct {
	s  *Schedule
	at []int // by stage, microbatch, and F, B or I, W
}

func newEnds(s *Schedule) ends { return ends{s, make([]int, 3*s.NumStages*s.NumMicrobatches)} }

func (e ends) of(a Action) *int {
	kind := 0
	switch a.Kind {
	case Backward, InputGrad:
		kind = 1
	case WeightGrad:
		kind = 2
	}
	return &e.at[3*(a.Stage*e.s.NumMicrobatches+a.Microbatch)+kind]
}

// ready is the first tick from earliest at which a can start, false if what it needs has not been made yet.
func (e ends) ready(a Action, earliest int) (start int, ok bool) {
	prev, waits := needs(a, e.s.NumStages)
	if !waits {
		return earliest, true
	}
	arrived := *e.of(prev)
	return max(earliest, arrived), arrived > 0
}

func deadlock(s *Schedule, next []int) error {
	var waits []string
	for rank, actions := range s.Ranks {
		if next[rank] < len(actions) {
			a := actions[next[rank]]
			prev, _ := needs(a, s.NumStages)
			waits = append(waits, fmt.Sprintf("rank %d, column %d: %v waits for %v", rank, next[rank], a, prev))
		}
	}
	return fmt.Errorf("schedule %s: deadlock: %s", s.Name, strings.Join(waits, "; "))
}

// inFlight counts, in each rank's own order, the microbatches whose activations a stage holds.
func inFlight(s *Schedule) []int {
	most, now := make([]int, s.NumStages), make([]int, s.NumStages)
	for _, actions := range s.Ranks {
		for _, a := range actions {
			switch a.Kind {
			case Forward:
				now[a.Stage]++
			case Backward, WeightGrad:
				now[a.Stage]--
			}
			most[a.Stage] = max(most[a.Stage], now[a.Stage])
		}
	}
	return most
}
