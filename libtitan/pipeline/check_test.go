package pipeline

import (
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parse makes a schedule, right or wrong, of rows with blanks between actions.
func parse(numStages, numMicrobatches int, rows ...string) *Schedule {
	s := &Schedule{Name: "test", NumStages: numStages, NumMicrobatches: numMicrobatches, StageRank: make([]int, min(numStages, 1<<10))}
	for rank, row := range rows {
		var actions []Action
		for word := range strings.FieldsSeq(row) {
			parts := actionForm.FindStringSubmatch(word)
			stage, _ := strconv.Atoi(parts[1])
			microbatch, _ := strconv.Atoi(parts[3])
			actions = append(actions, Action{Stage: stage, Kind: Kind(parts[2]), Microbatch: microbatch})
		}
		for _, a := range slices.Backward(actions) {
			if a.Stage < numStages && s.StageRank[a.Stage] == 0 {
				s.StageRank[a.Stage] = rank
			}
		}
		s.Ranks = append(s.Ranks, actions)
	}
	return s
}

func TestCheckAcceptsSplitBackwards(t *testing.T) {
	s := parse(4, 2, "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1", "1F0 1F1 3F0 3F1 3I0 3W0 3I1 3W1 1I0 1W0 1I1 1W1")
	require.NoError(t, Check(s))
	require.Equal(t, []int{0, 1, 0, 1}, s.StageRank)
	line, err := Simulate(s, Ticks())
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 2, 2}, line.InFlight)
}

// Messages are named: a rank may take them in another order than they are sent in.
func TestCheckAcceptsUnlikeOrders(t *testing.T) {
	require.NoError(t, Check(parse(2, 2, "0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1")))
}

// A group starts when all of it can.
func TestGroups(t *testing.T) {
	s := parse(2, 2, "0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1")
	s.Ranks[0][1].WithNext = true
	line, err := Simulate(s, Ticks())
	require.NoError(t, err)
	require.Equal(t, [][]int{{0, 3, 4, 6}, {1, 2, 4, 5}}, line.Start)
	require.Equal(t, []string{"0F0", "(0F1;0B0)OVERLAP_F_B", "0B1"}, Cells(s.Ranks[0]))
	s = parse(1, 1, "0F0 0B0")
	s.Ranks[0][0].WithNext = true
	require.NoError(t, Check(s))
	s = parse(2, 1, "0F0 0B0", "1F0 1B0")
	s.Ranks[0][0].WithNext = true
	require.EqualError(t, Check(s), "schedule test: deadlock: rank 0, column 1: 0B0 waits for 1B0; rank 1, column 0: 1F0 waits for 0F0")
}

func halfGroup() *Schedule {
	s := parse(1, 1, "0F0 0B0")
	s.Ranks[0][1].WithNext = true
	return s
}

func TestCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		s    *Schedule
		want string
	}{
		{"no forward", parse(2, 1, "0F0 0B0", "1B0"), "schedule test: rank 1: stage 1, microbatch 0 has no forward"},
		{"no backward", parse(2, 1, "0F0", "1F0 1B0"), "schedule test: rank 0: stage 0, microbatch 0 has no backward"},
		{"no weight gradient", parse(2, 1, "0F0 0I0", "1F0 1I0 1W0"), "schedule test: rank 0, column 1: 0I0: stage 0 never gets the weight gradient of microbatch 0"},
		{"weight gradient first", parse(1, 1, "0F0 0W0 0I0"), "schedule test: rank 0, column 1: 0W0: comes before its input gradient"},
		{"both backwards", parse(1, 1, "0F0 0B0 0I0"), "schedule test: rank 0, column 2: 0I0: the full backward in column 1 has done it"},
		{"weight gradient twice", parse(1, 1, "0F0 0B0 0W0"), "schedule test: rank 0, column 2: 0W0: the full backward in column 1 has done it"},
		{"backward first", parse(1, 1, "0B0 0F0"), "schedule test: rank 0, column 0: 0B0: comes before its forward"},
		{"stage on two ranks", parse(2, 2, "0F0 0B0 1F0", "1F0 1B0"), "schedule test: rank 0, column 2: 1F0: stage 1 is on rank 1 too"},
		{"twice", parse(1, 1, "0F0 0F0 0B0"), "schedule test: rank 0, column 1: 0F0: done before, in column 0"},
		{"unknown kind", parse(1, 1, "0F0 0X0"), "schedule test: rank 0, column 1: 0X0: kind X is none of F, B, I, W"},
		{"unknown microbatch", parse(1, 1, "0F0 0B0 0F1"), "schedule test: rank 0, column 2: 0F1: there are 1 stages and 1 microbatches"},
		{"deadlock", parse(2, 2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), "schedule test: deadlock: rank 0, column 1: 0B0 waits for 1B0; rank 1, column 1: 1F1 waits for 0F1"},
		{"weight gradient alone", parse(1, 1, "0F0 0W0"), "schedule test: rank 0, column 1: 0W0: its input gradient is missing"},
		{"half a group", halfGroup(), "schedule test: rank 0, column 1: 0B0: nothing follows that it could be grouped with"},
		{"no rank", &Schedule{Name: "test", NumStages: 1, NumMicrobatches: 1, StageRank: []int{0}}, "schedule test: stage 0 is on rank 0 of 0"},
		{"no map", &Schedule{Name: "test", NumStages: 1, NumMicrobatches: 1}, "schedule test: 0 stages have a rank, of 1"},
		{"vast", parse(1<<40, 1<<40), "schedule test: 1099511627776 stages of 1099511627776 microbatches are more than 1048576 actions"},
		{"many", parse(2, 2, ""), "schedule test: rank 0: stage 0, microbatch 0 has no forward; rank 0: stage 0, microbatch 1 has no forward; rank 0: stage 1, microbatch 0 has no forward"},
	} {
		t.Run(c.name, func(t *testing.T) { require.EqualError(t, Check(c.s), c.want) })
	}
}

func TestSimulateRefusesWhatItCannotLookUp(t *testing.T) {
	for want, s := range map[string]*Schedule{
		"schedule test: rank 0, column 1: 3F0: there are 1 stages and 1 microbatches": parse(1, 1, "0F0 3F0"),
		"schedule test: rank 0, column 0: 0X0: kind X is none of F, B, I, W":          parse(1, 1, "0X0"),
		"schedule test: deadlock: rank 0, column 0: 1F0 waits for 0F0":                parse(2, 1, "1F0"),
	} {
		_, err := Simulate(s, Ticks())
		require.EqualError(t, err, want)
	}
}
