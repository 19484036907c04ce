package pipeline

import (
	"fmt"
	"strings"
)

// lowered is a file in lowered form, whose work alone is s.
type lowered struct {
	*file
	s    *Schedule
	at   map[Action]spot // of everything but UNSHARD and RESHARD
	sent map[spot]spot   // of a receive, its send
}

// checkLowered looks at what a file in lowered form adds to its work s: each result that changes ranks is sent
// once and received once, in between its maker and its taker and in one order between any two ranks; nobody waits
// for ever; parameters are there when they are used, and gradients are whole when they are reduced.
func (f *file) checkLowered(s *Schedule) error {
	l := &lowered{f, s, map[Action]spot{}, map[spot]spot{}}
	isLowered := false
	for rank := range f.ranks {
		isLowered = isLowered || len(f.ranks[rank]) > len(s.Ranks[rank])
	}
	if !isLowered {
		return nil
	}
	for _, check := range []func() error{l.place, l.messages, l.strays, l.order, l.parameters, l.reductions, l.deadlock} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func (l *lowered) errorf(at spot, format string, args ...any) error {
	return fmt.Errorf("rank %d, column %d: %v: %w", at.rank, l.columns[at.rank][at.i], l.action(at), fmt.Errorf(format, args...))
}

func (l *lowered) action(at spot) Action {
	a := l.ranks[at.rank][at.i]
	a.WithNext = false
	return a
}

// each calls visit for every action, rank after rank, until it fails.
func (l *lowered) each(visit func(at spot, a Action) error) error {
	for rank, actions := range l.ranks {
		for i := range actions {
			at := spot{rank, i}
			if err := visit(at, l.action(at)); err != nil {
				return err
			}
		}
	}
	return nil
}

// place finds where each action stands.
func (l *lowered) place() error {
	return l.each(func(at spot, a Action) error {
		if a.Stage >= l.s.NumStages || l.s.StageRank[a.Stage] != at.rank {
			return l.errorf(at, "stage %d is not on rank %d", a.Stage, at.rank)
		}
		if a.Kind == Unshard || a.Kind == Reshard {
			return nil
		}
		if first, again := l.at[a]; again {
			return l.errorf(at, "done before, in column %d", l.columns[at.rank][first.i])
		}
		l.at[a] = at
		return nil
	})
}

// messages pairs sends with receives, and looks whether they stand between the work that makes and takes a result.
func (l *lowered) messages() error {
	return l.each(func(at spot, a Action) error {
		send, recv, travels := l.s.message(a)
		if !travels {
			return nil
		}
		from, sends := l.at[send]
		to, receives := l.at[recv]
		taker, takes := l.at[l.taker(recv, Backward)]
		if !takes {
			taker = l.at[l.taker(recv, InputGrad)]
		}
		switch {
		case !sends:
			return l.errorf(at, "no %v sends its result to rank %d", send, l.s.StageRank[recv.Stage])
		case from.i < at.i:
			return l.errorf(from, "comes before %v, whose result it sends", a)
		case !receives:
			return l.errorf(from, "rank %d has no %v", l.s.StageRank[recv.Stage], recv)
		case to.i > taker.i:
			return l.errorf(to, "comes after %v, which waits for it", l.action(taker))
		}
		l.sent[to] = from
		return nil
	})
}

// taker is the work that waits for recv, a forward or a backward of kind.
func (l *lowered) taker(recv Action, kind Kind) Action {
	if recv.Kind == RecvF {
		kind = Forward
	}
	return Action{Stage: recv.Stage, Kind: kind, Microbatch: recv.Microbatch}
}

// strays finds sends and receives that no work needs.
func (l *lowered) strays() error {
	used := map[spot]bool{}
	for to, from := range l.sent {
		used[to], used[from] = true, true
	}
	return l.each(func(at spot, a Action) error {
		if strings.HasPrefix(string(a.Kind), "SEND") && !used[at] {
			return l.errorf(at, "no other rank waits for this result")
		}
		if strings.HasPrefix(string(a.Kind), "RECV") && !used[at] {
			return l.errorf(at, "no other rank makes this result")
		}
		return nil
	})
}

// order verifies that each rank receives in the order in which another sends: channels between ranks, as NCCL's,
// keep order.
func (l *lowered) order() error {
	last := map[[2]int]spot{} // by sender and receiver, the last send that was received
	return l.each(func(to spot, a Action) error {
		from, ok := l.sent[to]
		if !ok {
			return nil
		}
		channel := [2]int{from.rank, to.rank}
		if before, ok := last[channel]; ok && before.i > from.i {
			return l.errorf(to, "rank %d sends %v before %v: receive in the order of sends", from.rank, l.action(from), l.action(before))
		}
		last[channel] = from
		return nil
	})
}

// parameters verifies, in a file that says when they are gathered, that they are when a stage works.
func (l *lowered) parameters() error {
	gathered, any := map[int]bool{}, false
	for _, actions := range l.ranks {
		for _, a := range actions {
			any = any || a.Kind == Unshard
		}
	}
	return l.each(func(at spot, a Action) error {
		_, work := kindNumber[a.Kind]
		switch {
		case a.Kind == Unshard && gathered[a.Stage]:
			return l.errorf(at, "stage %d is unsharded already", a.Stage)
		case a.Kind == Reshard && !gathered[a.Stage], work && any && !gathered[a.Stage]:
			return l.errorf(at, "stage %d is not unsharded", a.Stage)
		case a.Kind == Unshard || a.Kind == Reshard:
			gathered[a.Stage] = a.Kind == Unshard
		}
		return nil
	})
}

// reductions verifies that gradients are whole when they are reduced.
func (l *lowered) reductions() error {
	return l.each(func(at spot, a Action) error {
		if a.Kind != Backward && a.Kind != WeightGrad {
			return nil
		}
		reduced, ok := l.at[Action{Stage: a.Stage, Kind: ReduceGrad, Microbatch: none}]
		if ok && reduced.i < at.i {
			return l.errorf(reduced, "comes before %v, whose gradient it would leave out", a)
		}
		return nil
	})
}

// deadlock verifies that every receive gets what it waits for.
func (l *lowered) deadlock() error {
	stuck := advance(l.ranks, func(at spot) []spot {
		if from, ok := l.sent[at]; ok {
			return []spot{from}
		}
		return nil
	}, func(spot) {})
	if stuck == nil {
		return nil
	}
	var waits []string
	for rank, i := range stuck {
		if i < len(l.ranks[rank]) {
			at := spot{rank, i}
			waits = append(waits, l.errorf(at, "waits for %v", l.action(l.sent[at])).Error())
		}
	}
	return fmt.Errorf("deadlock: %s", few(waits))
}
