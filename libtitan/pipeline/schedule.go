package pipeline

import (
	"fmt"
	"strings"
)

// Kind is what an action does, by the word that a schedule CSV has for it.
type Kind string

// The kinds of work on a microbatch. A full backward B is an I and a W in one.
const (
	Forward    Kind = "F"
	Backward   Kind = "B"
	InputGrad  Kind = "I" // gradient of a stage's input, which the stage before it waits for
	WeightGrad Kind = "W" // gradient of its weights, which nobody waits for
)

// The kinds that the lowered form of a schedule adds. A send carries the result of a forward (F) or of an input
// gradient (B), and is named by the stage that made it; its receive is named by the stage that waits for it.
// Those without a microbatch are for a whole stage: gather its parameters, drop them, reduce its gradients.
const (
	SendF      Kind = "SEND_F"
	RecvF      Kind = "RECV_F"
	SendB      Kind = "SEND_B"
	RecvB      Kind = "RECV_B"
	Unshard    Kind = "UNSHARD"
	Reshard    Kind = "RESHARD"
	ReduceGrad Kind = "REDUCE_GRAD"
)

// Action is one piece of a rank's work.
type Action struct {
	Stage      int
	Kind       Kind
	Microbatch int  // none of a whole stage's
	WithNext   bool // grouped with the next action (OVERLAP_F_B): they start when both can, and may run at the same time
}

// none is the microbatch of an action on a whole stage.
const none = -1

// String is the action as a schedule CSV has it: 0F0, 3B12.
func (a Action) String() string {
	if a.Microbatch == none {
		return fmt.Sprintf("%d%s", a.Stage, a.Kind)
	}
	return fmt.Sprintf("%d%s%d", a.Stage, a.Kind, a.Microbatch)
}

// Schedule is the order of every pipeline rank's work: F, B, I and W alone, without the sends and receives that
// follow from it (see [Schedule.Lower]). The weight gradients of a stage, by B or W, may come in any order of
// microbatches; who adds them up and wants the same bits from every schedule adds them in microbatch order.
type Schedule struct {
	Name            string
	NumStages       int
	NumMicrobatches int
	StageRank       []int      // pp rank of each stage
	Ranks           [][]Action // by pp rank

	columns [][]int // in the CSV that the actions were read from
}

// column is where action i of rank stands in the CSV, or in Ranks.
func (s *Schedule) column(rank, i int) int {
	if s.columns != nil {
		return s.columns[rank][i]
	}
	return i
}

func (s *Schedule) place(rank, i int) string {
	return fmt.Sprintf("rank %d, column %d", rank, s.column(rank, i))
}

// kind is a schedule that Build knows.
type kind struct {
	name    string
	perRank [2]int // fewest and most stages a rank
	rankOf  func(stage, pp int) int
	legal   func(shape) error
	build   func(rank int, s shape) []Action
}

// shape is the size of a schedule.
type shape struct{ pp, perRank, microbatches int }

func (s shape) stages() int { return s.pp * s.perRank }

const anyNumber = maxActions

var known = []kind{
	{"GPipe", [2]int{1, 1}, LoopRank, always, gpipe},
	{"1F1B", [2]int{1, 1}, LoopRank, always, oneFOneB},
	{"Interleaved1F1B", [2]int{2, anyNumber}, LoopRank, wholeRounds, interleaved},
	{"LoopedBFS", [2]int{2, anyNumber}, LoopRank, always, loopedBFS},
	{"InterleavedZeroBubble", [2]int{2, anyNumber}, LoopRank, wholeRounds, interleavedZeroBubble},
	{"ZBVZeroBubble", [2]int{2, 2}, VRank, always, zbv},
	{"DualPipeV", [2]int{2, 2}, VRank, fullPipe, dualPipeV},
}

// Names lists the schedules that Build knows.
func Names() []string {
	var names []string
	for _, k := range known {
		names = append(names, k.name)
	}
	return names
}

func find(name string) (kind, error) {
	for _, k := range known {
		if strings.EqualFold(k.name, name) {
			return k, nil
		}
	}
	return kind{}, fmt.Errorf("schedule %q is not among %s", name, strings.Join(Names(), ", "))
}

// maxActions bounds a schedule: 64 stages of 8192 microbatches.
const maxActions = 1 << 20

// Build makes the schedule called name, in any case, in the order in which PyTorch's torch.distributed.pipelining
// takes the actions. Each of pp ranks runs perRank stages; 0 stands for the fewest that the schedule has, 1 or 2.
// GPipe, 1F1B, LoopedBFS and ZBVZeroBubble take any number of microbatches, fewer than stages too: the ranks then
// wait longer.
func Build(name string, pp, perRank, numMicrobatches int) (*Schedule, error) {
	k, sh, err := legal(name, pp, perRank, numMicrobatches)
	if err != nil {
		return nil, err
	}
	s := &Schedule{Name: k.name, NumStages: sh.stages(), NumMicrobatches: numMicrobatches}
	for stage := range s.NumStages {
		s.StageRank = append(s.StageRank, k.rankOf(stage, pp))
	}
	for rank := range pp {
		s.Ranks = append(s.Ranks, k.build(rank, sh))
	}
	return s, nil
}

// Legal says which rule the numbers of a schedule break, and how to keep it; nil when Build can make it.
func Legal(name string, pp, perRank, numMicrobatches int) error {
	_, _, err := legal(name, pp, perRank, numMicrobatches)
	return err
}

// RankActions is the work of one rank of the schedule that Build makes of the same numbers, without the others'.
func RankActions(name string, pp, perRank, numMicrobatches, rank int) ([]Action, error) {
	k, sh, err := legal(name, pp, perRank, numMicrobatches)
	if err != nil {
		return nil, err
	}
	if rank < 0 || rank >= pp {
		return nil, fmt.Errorf("schedule %s: rank %d of %d", k.name, rank, pp)
	}
	return k.build(rank, sh), nil
}

// StageRank maps stages to ranks as the schedule called name does. The error is that of Legal.
func StageRank(name string, pp, perRank, numMicrobatches int) ([]int, error) {
	k, sh, err := legal(name, pp, perRank, numMicrobatches)
	if err != nil {
		return nil, err
	}
	ranks := make([]int, sh.stages())
	for stage := range ranks {
		ranks[stage] = k.rankOf(stage, pp)
	}
	return ranks, nil
}

func legal(name string, pp, perRank, numMicrobatches int) (kind, shape, error) {
	k, err := find(name)
	if err != nil {
		return k, shape{}, err
	}
	fail := func(format string, args ...any) (kind, shape, error) {
		return k, shape{}, fmt.Errorf("schedule %s: %w", k.name, fmt.Errorf(format, args...))
	}
	if perRank == 0 {
		perRank = k.perRank[0]
	}
	s := shape{pp, perRank, numMicrobatches}
	switch least, most := k.perRank[0], k.perRank[1]; {
	case pp < 1 || numMicrobatches < 1:
		return fail("%d pipeline ranks and %d microbatches: both must be at least 1", pp, numMicrobatches)
	case least == most && perRank != least:
		return fail("%d stages a rank: it runs exactly %d", perRank, least)
	case perRank < least:
		return fail("%d stages a rank: it runs at least %d (GPipe and 1F1B run 1)", perRank, least)
	case max(pp, perRank, numMicrobatches) > maxActions || pp*perRank > maxActions || 2*s.stages()*numMicrobatches > maxActions:
		return fail("%d pipeline ranks, %d stages a rank and %d microbatches make more than %d actions", pp, perRank, numMicrobatches, maxActions)
	}
	if err := k.legal(s); err != nil {
		return fail("%w", err)
	}
	return k, s, nil
}

func always(shape) error { return nil }

// wholeRounds is the rule of the interleaved schedules: microbatches go in rounds of equally many.
func wholeRounds(s shape) error {
	if rounds := s.rounds(); s.microbatches%rounds != 0 {
		less := s.microbatches / rounds * rounds
		return fmt.Errorf("%d microbatches over %d pipeline ranks go in max(1, %d div %d) = %d rounds, and %d does not divide by %d: use %d or %d",
			s.microbatches, s.pp, s.microbatches, s.pp, rounds, s.microbatches, rounds, less, min(less+rounds, s.pp*(rounds+1)))
	}
	return nil
}

func (s shape) rounds() int { return max(1, s.microbatches/s.pp) }

// fullPipe is the rule of DualPipeV, whose steady part starts when each stage has a microbatch.
func fullPipe(s shape) error {
	if s.microbatches < s.stages() {
		return fmt.Errorf("%d microbatches are fewer than its %d stages: use at least %d", s.microbatches, s.stages(), s.stages())
	}
	return nil
}

// LoopRank is the rank of stage in loop order: rank r runs r, r+pp, r+2pp and so on. With one stage a rank it is
// the stage itself.
func LoopRank(stage, pp int) int { return stage % pp }

// VRank is the rank of stage in V order, two stages a rank: rank r runs r and 2pp-1-r.
func VRank(stage, pp int) int { return min(stage, 2*pp-1-stage) }
