package pipeline

// Lower adds to each rank's actions the sends and receives that they need, and a REDUCE_GRAD after the last
// weight gradient of each stage: PyTorch's compute_comms form, without the UNSHARD and RESHARD that depend on how
// parameters are sharded. A result is sent as soon as it is there, and its receive stands where the taker is by
// then if ranks take an action each in turn: between any two ranks, receives stand in the order of sends. s must
// pass Check.
func (s *Schedule) Lower() [][]Action {
	lowered, rest := make([][]Action, len(s.Ranks)), make([][]Action, len(s.Ranks))
	for rank := range s.Ranks {
		rest[rank] = s.withReductions(rank)
	}
	next := make([]int, len(s.Ranks))
	suppliers := s.suppliers()
	ready := func(at spot) bool {
		for _, from := range suppliers(at) {
			if from == nowhere || next[from.rank] <= from.i {
				return false
			}
		}
		return true
	}
	for moved := true; moved; {
		moved = false
		for rank := range rest {
			if len(rest[rank]) == 0 || rest[rank][0].Kind != ReduceGrad && !ready(spot{rank, next[rank]}) {
				continue
			}
			together := group(rest[rank])
			rest[rank] = rest[rank][len(together):]
			lowered[rank] = append(lowered[rank], together...)
			for _, a := range together {
				if a.Kind != ReduceGrad {
					next[rank]++
				}
				if send, recv, ok := s.message(a); ok {
					lowered[rank] = append(lowered[rank], send)
					to := s.StageRank[recv.Stage]
					lowered[to] = append(lowered[to], recv)
				}
			}
			moved = true
		}
	}
	return lowered
}

// withReductions is the work of rank, each stage's gradients reduced when the last of them is there.
func (s *Schedule) withReductions(rank int) []Action {
	made := map[int]int{} // weight gradients, by stage
	var actions, due []Action
	for _, a := range s.Ranks[rank] {
		actions = append(actions, a)
		if a.Kind == Backward || a.Kind == WeightGrad {
			made[a.Stage]++
			if made[a.Stage] == s.NumMicrobatches {
				due = append(due, Action{Stage: a.Stage, Kind: ReduceGrad, Microbatch: none})
			}
		}
		if !a.WithNext {
			actions = append(actions, due...)
			due = nil
		}
	}
	return actions
}

// message is how a's result travels, false if it stays on its rank.
func (s *Schedule) message(a Action) (send, recv Action, ok bool) {
	to, sends, receives := a.Stage, SendF, RecvF
	switch a.Kind {
	case Forward:
		to++
	case Backward, InputGrad:
		to, sends, receives = a.Stage-1, SendB, RecvB
	default:
		return send, recv, false
	}
	if to < 0 || to >= s.NumStages || s.StageRank[to] == s.StageRank[a.Stage] {
		return send, recv, false
	}
	return Action{Stage: a.Stage, Kind: sends, Microbatch: a.Microbatch}, Action{Stage: to, Kind: receives, Microbatch: a.Microbatch}, true
}
