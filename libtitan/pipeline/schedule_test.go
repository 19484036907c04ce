package pipeline

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func rows(s *Schedule) (rows []string) {
	for _, actions := range s.Ranks {
		rows = append(rows, strings.Trim(fmt.Sprint(actions), "[]"))
	}
	return rows
}

func TestBuild(t *testing.T) {
	s, err := Build("gpipe", 2, 3)
	require.NoError(t, err)
	require.Equal(t, "GPipe", s.Name)
	require.Equal(t, []string{"0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"}, rows(s))
	s, err = Build("1f1b", 3, 4)
	require.NoError(t, err)
	require.Equal(t, []string{
		"0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
		"1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
		"2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
	}, rows(s))
	_, err = Build("2F2B", 2, 2)
	require.EqualError(t, err, `schedule "2F2B" is not among GPipe, 1F1B`)
	_, err = Build("GPipe", 2, 0)
	require.EqualError(t, err, "schedule GPipe: 2 pipeline ranks and 0 microbatches: both must be at least 1")
	_, err = Build("GPipe", 1<<20, 1<<20)
	require.ErrorContains(t, err, "make more than 1048576 actions")
}

// Fewer microbatches than stages is slow, not wrong: no hang, and the idle share that arithmetic gives.
func TestFewerMicrobatchesThanStages(t *testing.T) {
	for _, name := range Names() {
		s, err := Build(name, 4, 1)
		require.NoError(t, err)
		require.NoError(t, Check(s))
		line, err := Simulate(s)
		require.NoError(t, err)
		require.Equal(t, 8, line.Makespan)
		require.Equal(t, 0.75, line.Bubble)
		require.Equal(t, []int{1, 1, 1, 1}, line.InFlight)
		require.Equal(t, [][]int{{0, 7}, {1, 6}, {2, 5}, {3, 4}}, line.Start)
	}
}

// Every schedule is whole and runs to its end; both take 2(pp+m-1) ticks, and 1F1B holds at most as many
// microbatches as there are stages from it to the end.
func TestSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Names()).Draw(t, "name")
		pp, m := rapid.IntRange(1, 9).Draw(t, "pp"), rapid.IntRange(1, 20).Draw(t, "microbatches")
		s, err := Build(name, pp, m)
		require.NoError(t, err)
		require.NoError(t, Check(s))
		line, err := Simulate(s)
		require.NoError(t, err)
		require.Equal(t, 2*(pp+m-1), line.Makespan)
		require.InDelta(t, float64(pp-1)/float64(pp+m-1), line.Bubble, 1e-12)
		for stage, n := range line.InFlight {
			want := m
			if name == "1F1B" {
				want = min(m, pp-stage)
			}
			require.Equal(t, want, n)
			require.Equal(t, stage, s.StageRanks()[stage])
		}
	})
}

var action = regexp.MustCompile(`(\d+)([A-Z])(\d+)`)

// parse makes a schedule of rows as rows writes them.
func parse(numStages, numMicrobatches int, rows ...string) *Schedule {
	s := &Schedule{Name: "test", NumStages: numStages, NumMicrobatches: numMicrobatches}
	for _, row := range rows {
		var actions []Action
		for _, m := range action.FindAllStringSubmatch(row, -1) {
			stage, _ := strconv.Atoi(m[1])
			microbatch, _ := strconv.Atoi(m[3])
			actions = append(actions, Action{stage, Kind(m[2][0]), microbatch})
		}
		s.Ranks = append(s.Ranks, actions)
	}
	return s
}

func TestCheckAcceptsSplitBackwards(t *testing.T) {
	s := parse(4, 2, "0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1", "1F0 1F1 3F0 3F1 3I0 3W0 3I1 3W1 1I0 1W0 1I1 1W1")
	require.NoError(t, Check(s))
	require.Equal(t, []int{0, 1, 0, 1}, s.StageRanks())
	line, err := Simulate(s)
	require.NoError(t, err)
	require.Equal(t, []int{2, 2, 2, 2}, line.InFlight)
}

func TestCheckRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		s    *Schedule
		want string
	}{
		{"no forward", parse(2, 1, "0F0 0B0", "1B0"), "schedule test: stage 1, microbatch 0 has no forward"},
		{"no backward", parse(2, 1, "0F0", "1F0 1B0"), "schedule test: stage 0, microbatch 0 has no backward"},
		{"no weight gradient", parse(2, 1, "0F0 0I0", "1F0 1I0 1W0"), "schedule test: rank 0, column 1: 0I0: stage 0 never gets the weight gradient of microbatch 0"},
		{"weight gradient first", parse(1, 1, "0F0 0W0 0I0"), "schedule test: rank 0, column 1: 0W0: comes before its input gradient"},
		{"both backwards", parse(1, 1, "0F0 0B0 0I0"), "schedule test: rank 0, column 2: 0I0: the full backward in column 1 has done it"},
		{"weight gradient twice", parse(1, 1, "0F0 0B0 0W0"), "schedule test: rank 0, column 2: 0W0: the full backward in column 1 has done it"},
		{"backward first", parse(1, 1, "0B0 0F0"), "schedule test: rank 0, column 0: 0B0: comes before its forward"},
		{"stage on two ranks", parse(2, 2, "0F0 0B0 1F0", "1F0 1B0"), "schedule test: rank 1, column 0: 1F0: stage 1 is on rank 0 too"},
		{"twice", parse(1, 1, "0F0 0F0 0B0"), "schedule test: rank 0, column 1: 0F0: done before, in column 0"},
		{"unknown kind", parse(1, 1, "0F0 0X0"), "schedule test: rank 0, column 1: 0X0: kind X is none of F, B, I, W"},
		{"unknown microbatch", parse(1, 1, "0F0 0B0 0F1"), "schedule test: rank 0, column 2: 0F1: there are 1 stages and 1 microbatches"},
		{"unlike orders", parse(2, 2, "0F0 0F1 0B0 0B1", "1F1 1F0 1B0 1B1"), "schedule test: rank 0 sends 0F0 when rank 1 waits for 0F1: send in the order in which they are taken"},
		{"deadlock", parse(2, 2, "0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1"), "schedule test: deadlock: rank 0, column 1: 0B0 waits for 1B0; rank 1, column 1: 1F1 waits for 0F1"},
		{"vast", parse(1<<40, 1<<40), "schedule test: 1099511627776 stages of 1099511627776 microbatches are more than 1048576 actions"},
		{"many", parse(2, 2), "schedule test: stage 0, microbatch 0 has no forward; stage 0, microbatch 1 has no forward; stage 1, microbatch 0 has no forward"},
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
		_, err := Simulate(s)
		require.EqualError(t, err, want)
	}
}
