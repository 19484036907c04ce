package pipeline

import "slices"

// queue is the work of one rank as it is laid out. The forwards and the backwards of a stage are numbered in
// the order in which they are added.
type queue struct {
	actions   []Action
	forwards  []int // by stage, the next microbatch
	backwards []int
	pending   []Action // weight gradients whose input gradients stand in actions, oldest first
}

func newQueue(s shape) *queue {
	return &queue{actions: make([]Action, 0, 3*s.perRank*s.microbatches), forwards: make([]int, s.stages()), backwards: make([]int, s.stages())}
}

// piece is an action that has no microbatch yet.
type piece struct {
	stage int
	kind  Kind
}

// anyStage stands for the stage of the weight gradient that has waited longest.
const anyStage = -1

// repeat adds pieces n times over.
func (q *queue) repeat(n int, pieces ...piece) {
	for range n {
		for _, p := range pieces {
			q.add(p)
		}
	}
}

// add appends p for the next microbatch of its stage. A weight gradient is left out where none is pending.
func (q *queue) add(p piece) {
	switch p.kind {
	case Forward:
		q.actions = append(q.actions, Action{Stage: p.stage, Kind: Forward, Microbatch: q.forwards[p.stage]})
		q.forwards[p.stage]++
	case Backward, InputGrad:
		a := Action{Stage: p.stage, Kind: p.kind, Microbatch: q.backwards[p.stage]}
		q.actions = append(q.actions, a)
		q.backwards[p.stage]++
		if a.Kind == InputGrad {
			a.Kind = WeightGrad
			q.pending = append(q.pending, a)
		}
	case WeightGrad:
		i := slices.IndexFunc(q.pending, func(a Action) bool { return p.stage == anyStage || a.Stage == p.stage })
		if i < 0 {
			return
		}
		q.actions = append(q.actions, q.pending[i])
		copy(q.pending[1:i+1], q.pending[:i])
		q.pending = q.pending[1:]
	}
}

// overlap adds a forward and a backward that may run at the same time.
func (q *queue) overlap(forward, backward piece) {
	q.add(forward)
	q.actions[len(q.actions)-1].WithNext = true
	q.add(backward)
}

// gpipe runs all forwards, then all backwards (Huang et al. 2019, arXiv 1811.06965).
func gpipe(rank int, s shape) []Action {
	q := newQueue(s)
	q.repeat(s.microbatches, piece{rank, Forward})
	q.repeat(s.microbatches, piece{rank, Backward})
	return q.actions
}

// oneFOneB fills the pipe, then takes a backward after each forward, so that a stage holds the activations of at
// most as many microbatches as there are stages from it to the end (PipeDream-Flush, arXiv 2006.09503).
func oneFOneB(rank int, s shape) []Action {
	q := newQueue(s)
	warmup := min(s.microbatches, s.pp-rank)
	q.repeat(warmup, piece{rank, Forward})
	q.repeat(s.microbatches-warmup, piece{rank, Backward}, piece{rank, Forward})
	q.repeat(warmup, piece{rank, Backward})
	return q.actions
}

// loopedBFS is GPipe for many stages a rank: each takes all microbatches before the next does, and backwards run
// from the last microbatch to the first (Lamy-Poirier 2022, arXiv 2211.05953).
func loopedBFS(rank int, s shape) []Action {
	q := newQueue(s)
	for i := range s.perRank {
		q.repeat(s.microbatches, piece{i*s.pp + rank, Forward})
	}
	actions := q.actions
	for _, a := range slices.Backward(q.actions) {
		a.Kind = Backward
		actions = append(actions, a)
	}
	return actions
}

// interleaved is 1F1B for many stages a rank: a round of microbatches goes through each of them in turn
// (Narayanan et al. 2021, arXiv 2104.04473).
func interleaved(rank int, s shape) []Action { return inRounds(rank, s, 2, Backward) }

// interleavedZeroBubble starts backwards sooner and fills the waiting with weight gradients, each as many steps
// after its input gradient as there are ranks before this one (Qi et al. 2023, arXiv 2401.10241).
func interleavedZeroBubble(rank int, s shape) []Action { return inRounds(rank, s, 1, InputGrad) }

// inRounds lays out an interleaved schedule; a rank does perHop forwards more than the next before its first backward.
func inRounds(rank int, s shape, perHop int, backward Kind) []Action {
	q := newQueue(s)
	round := s.microbatches / s.rounds()
	total := s.perRank * s.microbatches
	warmup := min((s.perRank-1)*round+perHop*(s.pp-1-rank), total)
	local := func(step int) int { return step / round % s.perRank }
	for step := range warmup {
		q.add(piece{local(step)*s.pp + rank, Forward})
	}
	for step := range total {
		if next := warmup + step; next < total {
			q.add(piece{local(next)*s.pp + rank, Forward})
		}
		q.add(piece{(s.perRank-1-local(step))*s.pp + rank, backward})
		if step >= rank {
			q.add(piece{anyStage, WeightGrad})
		}
	}
	q.repeat(len(q.pending), piece{anyStage, WeightGrad})
	return q.actions
}

// zbv runs two stages a rank, down the ranks and up again, with no rank idle in the steady part when F, I and W
// take equally long (arXiv 2401.10241, section 6). It is laid out for microbatches that fill the pipe, and those
// that are not there are left out.
func zbv(rank int, s shape) []Action {
	q := newQueue(s)
	down, up := rank, 2*s.pp-1-rank
	full := max(2*s.pp-1, s.microbatches)
	q.repeat(2*(s.pp-rank)-1, piece{down, Forward})
	q.repeat(rank, piece{up, Forward}, piece{down, Forward})
	q.repeat(s.pp-rank, piece{up, Forward}, piece{up, InputGrad}, piece{up, WeightGrad})
	for q.forwards[up] < full {
		if q.forwards[down] < full {
			q.add(piece{down, Forward})
		}
		q.repeat(1, piece{down, InputGrad}, piece{down, WeightGrad}, piece{up, Forward}, piece{up, InputGrad}, piece{up, WeightGrad})
	}
	q.repeat(rank, piece{down, InputGrad}, piece{up, InputGrad})
	q.repeat(s.pp-rank, piece{down, InputGrad}, piece{down, WeightGrad})
	q.repeat(rank, piece{up, WeightGrad})
	q.repeat(rank, piece{down, WeightGrad})
	return slices.DeleteFunc(q.actions, func(a Action) bool { return a.Microbatch >= s.microbatches })
}

// dualPipeV runs two stages a rank in a V and pairs the forward of one with the backward of the other
// (github.com/deepseek-ai/DualPipe; its eight steps).
func dualPipeV(rank int, s shape) []Action {
	q := newQueue(s)
	after := s.pp - 1 - rank // ranks after this one
	down, up := rank, 2*s.pp-1-rank
	q.repeat(2*after, piece{down, Forward})
	q.repeat(rank+1, piece{down, Forward}, piece{up, Forward})
	q.repeat(after, piece{up, InputGrad}, piece{up, WeightGrad}, piece{up, Forward})
	for i := range s.microbatches - 2*s.pp + rank + 1 {
		if i == 0 && after == 0 {
			q.repeat(1, piece{down, Forward}, piece{up, Backward}) // apart, the last rank starts its first backward sooner
		} else {
			q.overlap(piece{down, Forward}, piece{up, Backward})
		}
		q.overlap(piece{up, Forward}, piece{down, Backward})
	}
	for range after {
		q.add(piece{up, Backward})
		q.overlap(piece{up, Forward}, piece{down, Backward})
	}
	// From half of the last backwards on, the weight gradients wait, to fill the gaps of the drain.
	backwards := func(i int) Kind {
		if i < rank+1 {
			return Backward
		}
		return InputGrad
	}
	for i := range rank + 1 {
		q.add(piece{up, backwards(2 * i)})
		q.add(piece{down, backwards(2*i + 1)})
	}
	q.repeat(after, piece{anyStage, WeightGrad}, piece{down, InputGrad})
	q.repeat(len(q.pending), piece{anyStage, WeightGrad})
	return q.actions
}
