package pipeline

import (
	"fmt"
	"slices"
	"strings"
)

// Times says how long an action lasts, and how long a result takes to the next stage's rank. The unit is the
// caller's.
type Times struct{ F, B, I, W, Send int }

// Ticks are the times by which schedules are usually drawn: one for each action, none for a result.
func Ticks() Times { return Times{F: 1, B: 1, I: 1, W: 1} }

// Of is how long an action of a kind lasts.
func (t Times) Of(k Kind) int {
	switch k {
	case Forward:
		return t.F
	case Backward:
		return t.B
	case InputGrad:
		return t.I
	}
	return t.W
}

// Timeline is when a schedule's actions run.
type Timeline struct {
	Makespan int       // from the first action to the end of the last
	Bubble   float64   // share of the ranks' time that they idle
	Idle     []float64 // share of each rank's
	Start    [][]int   // when each rank's actions start
	InFlight []int     // by stage: most microbatches between their forward and the end of their backward
}

// Simulate runs s: each rank takes its actions in order, one starting when the rank is free and what it needs has
// arrived, those of a group when that holds for all of them; a result is kept for its taker, so that sending never
// waits, nor does it keep the rank. The error says who waits for what when nobody can go on.
func Simulate(s *Schedule, times Times) (*Timeline, error) {
	return SimulateStages(s, func(int) Times { return times })
}

// SimulateStages is [Simulate] for stages that differ: times says how long the actions of a stage last, and how long
// its results take to the next stage or, of a backward, to the one before.
func SimulateStages(s *Schedule, times func(stage int) Times) (*Timeline, error) {
	if err := inRange(s); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", s.Name, err)
	}
	of := make([]Times, s.NumStages)
	for stage := range of {
		of[stage] = times(stage)
	}
	took := func(a Action) int { return of[a.Stage].Of(a.Kind) }
	n := len(s.Ranks)
	t := &Timeline{Idle: make([]float64, n), Start: make([][]int, n), InFlight: inFlight(s)}
	free, busy := make([]int, n), make([]int, n)
	suppliers := s.suppliers()
	stuck := advance(s.Ranks, suppliers, func(at spot) {
		start := free[at.rank]
		for _, from := range suppliers(at) {
			sent := s.Ranks[from.rank][from.i]
			arrived := t.Start[from.rank][from.i] + took(sent)
			if from.rank != at.rank {
				arrived += of[sent.Stage].Send
			}
			start = max(start, arrived)
		}
		lasts := took(s.Ranks[at.rank][at.i])
		free[at.rank] = start + lasts
		busy[at.rank] += lasts
		t.Start[at.rank] = append(t.Start[at.rank], start)
		t.Makespan = max(t.Makespan, start+lasts)
	})
	if stuck != nil {
		return nil, fmt.Errorf("schedule %s: deadlock: %s", s.Name, s.waits(stuck))
	}
	t.idle(busy)
	return t, nil
}

// idle settles what share of their time the ranks do not work.
func (t *Timeline) idle(busy []int) {
	worked, total := 0, len(busy)*t.Makespan
	if total == 0 {
		return
	}
	for rank, b := range busy {
		worked += b
		t.Idle[rank] = float64(t.Makespan-b) / float64(t.Makespan)
	}
	t.Bubble = float64(total-worked) / float64(total)
}

// spot is where an action stands: i counts in its rank's list.
type spot struct{ rank, i int }

// nowhere is the spot of an action that is not there.
var nowhere = spot{-1, 0}

// advance takes each rank's actions in order, each after those of need, and tells do; need's answer is good until
// the next call. It returns how many each rank has done when not all could be, else nil.
func advance(ranks [][]Action, need func(spot) []spot, do func(spot)) (stuck []int) {
	next := make([]int, len(ranks))
	waiting := map[spot][]int{} // ranks, by what they wait for
	queue := make([]int, len(ranks))
	for rank := range ranks {
		queue[rank] = rank
	}
	missing := func(at spot) (spot, bool) {
		for _, from := range need(at) {
			if from == nowhere || next[from.rank] <= from.i {
				return from, true
			}
		}
		return spot{}, false
	}
	left := 0
	for _, actions := range ranks {
		left += len(actions)
	}
	for len(queue) > 0 {
		rank := queue[0]
		queue = queue[1:]
		for next[rank] < len(ranks[rank]) {
			at := spot{rank, next[rank]}
			if from, blocked := missing(at); blocked {
				waiting[from] = append(waiting[from], rank)
				break
			}
			do(at)
			next[rank]++
			left--
			queue = append(queue, waiting[at]...)
			delete(waiting, at)
		}
	}
	if left > 0 {
		return next
	}
	return nil
}

// suppliers makes the function that finds the actions whose results the action at a spot, or its group, waits
// for. What it returns is good until the next call.
func (s *Schedule) suppliers() func(spot) []spot {
	at := newPlaces(s)
	for _, actions := range s.Ranks {
		for i, a := range actions {
			*at.of(a) = int32(i + 1)
		}
	}
	find := func(a Action) spot {
		i := *at.of(a)
		if i == 0 && a.Kind == Backward {
			a.Kind = InputGrad
			i = *at.of(a)
		}
		if i == 0 {
			return nowhere
		}
		return spot{s.StageRank[a.Stage], int(i) - 1}
	}
	var found []spot
	return func(at spot) []spot {
		found = found[:0]
		for _, a := range group(s.Ranks[at.rank][at.i:]) {
			if prev, waits := needs(a, s.NumStages); waits {
				found = append(found, find(prev))
			}
		}
		return found
	}
}

// needs is the action on the neighbouring stage whose result a waits for; for a backward, B stands for I as well.
func needs(a Action, numStages int) (Action, bool) {
	switch {
	case a.Kind == Forward && a.Stage > 0:
		return Action{Stage: a.Stage - 1, Kind: Forward, Microbatch: a.Microbatch}, true
	case (a.Kind == Backward || a.Kind == InputGrad) && a.Stage+1 < numStages:
		return Action{Stage: a.Stage + 1, Kind: Backward, Microbatch: a.Microbatch}, true
	}
	return Action{}, false
}

// group is the first action of rest, with those that are grouped with it.
func group(rest []Action) []Action {
	n := 1
	for rest[n-1].WithNext {
		n++
	}
	return rest[:n]
}

// waits says what each rank waits for that has done next of its actions.
func (s *Schedule) waits(next []int) string {
	var waits []string
	for rank, actions := range s.Ranks {
		if next[rank] == len(actions) {
			continue
		}
		for i, a := range group(actions[next[rank]:]) {
			prev, ok := needs(a, s.NumStages)
			if ok && !slices.ContainsFunc(s.Ranks[s.StageRank[prev.Stage]][:next[s.StageRank[prev.Stage]]], prev.suppliedBy) {
				waits = append(waits, fmt.Sprintf("%s: %v waits for %v", s.place(rank, next[rank]+i), a, prev))
				break
			}
		}
	}
	return few(waits)
}

// suppliedBy says whether done gives what waits for a.
func (a Action) suppliedBy(done Action) bool {
	return done.Stage == a.Stage && done.Microbatch == a.Microbatch && (done.Kind == a.Kind || a.Kind == Backward && done.Kind == InputGrad)
}

// few joins the first of many words for an error's one line.
func few(words []string) string {
	const most = 8
	if n := len(words) - most; n > 0 {
		words = append(words[:most:most], fmt.Sprintf("and %d more", n))
	}
	return strings.Join(words, "; ")
}

// Held is what a rank holds when it holds most, in its own order of actions: for each of its stages, how many
// microbatches are between their forward and the end of their backward. There is more than one such moment where the
// rank has more than one stage and none holds more of each; whatever a microbatch takes, the peak is among them.
func Held(actions []Action, stages []int) (moments [][]int) {
	now := make([]int, len(stages))
	rising := false
	for _, a := range actions {
		switch i := slices.Index(stages, a.Stage); {
		case i < 0:
		case a.Kind == Forward:
			now[i]++
			rising = true
		case a.Kind == Backward || a.Kind == WeightGrad:
			if rising {
				moments = addMoment(moments, now)
			}
			now[i]--
			rising = false
		}
	}
	return moments
}

// addMoment adds counts, unless some moment holds as many of each stage.
func addMoment(moments [][]int, counts []int) [][]int {
	for _, have := range moments {
		if covers(have, counts) {
			return moments
		}
	}
	moments = slices.DeleteFunc(moments, func(have []int) bool { return covers(counts, have) })
	return append(moments, slices.Clone(counts))
}

func covers(a, b []int) bool {
	for i := range a {
		if a[i] < b[i] {
			return false
		}
	}
	return true
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
