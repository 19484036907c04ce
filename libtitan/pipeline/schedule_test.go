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
	s, err := Build("gpipe", 2, 0, 3)
	require.NoError(t, err)
	require.Equal(t, "GPipe", s.Name)
	require.Equal(t, []string{"0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"}, rows(s))
	s, err = Build("1f1b", 3, 1, 4)
	require.NoError(t, err)
	require.Equal(t, []string{
		"0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
		"1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
		"2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
	}, rows(s))
	require.Equal(t, []int{0, 1, 2}, s.StageRank)
	s, err = Build("ZBVZeroBubble", 2, 0, 1)
	require.NoError(t, err)
	require.Equal(t, []string{"0F0 3F0 3I0 3W0 0I0 0W0", "1F0 2F0 2I0 2W0 1I0 1W0"}, rows(s))
	require.Equal(t, []int{0, 1, 1, 0}, s.StageRank)
}

func TestBuildRefuses(t *testing.T) {
	for _, c := range []struct {
		name                      string
		pp, perRank, microbatches int
		want                      string
	}{
		{"2F2B", 2, 0, 2, `schedule "2F2B" is not among GPipe, 1F1B, Interleaved1F1B, LoopedBFS, InterleavedZeroBubble, ZBVZeroBubble, DualPipeV`},
		{"GPipe", 2, 0, 0, "schedule GPipe: 2 pipeline ranks and 0 microbatches: both must be at least 1"},
		{"GPipe", 0, 0, 2, "schedule GPipe: 0 pipeline ranks and 2 microbatches: both must be at least 1"},
		{"GPipe", 1 << 20, 0, 1 << 20, "schedule GPipe: 1048576 pipeline ranks, 1 stages a rank and 1048576 microbatches make more than 1048576 actions"},
		{"LoopedBFS", 1 << 20, 1 << 40, 1 << 40, "schedule LoopedBFS: 1048576 pipeline ranks, 1099511627776 stages a rank and 1099511627776 microbatches make more than 1048576 actions"},
		{"1F1B", 2, 2, 2, "schedule 1F1B: 2 stages a rank: it runs exactly 1"},
		{"1F1B", 2, -1, 2, "schedule 1F1B: -1 stages a rank: it runs exactly 1"},
		{"interleaved1f1b", 2, 1, 2, "schedule Interleaved1F1B: 1 stages a rank: it runs at least 2 (GPipe and 1F1B run 1)"},
		{"LoopedBFS", 2, 1, 2, "schedule LoopedBFS: 1 stages a rank: it runs at least 2 (GPipe and 1F1B run 1)"},
		{"ZBVZeroBubble", 2, 3, 2, "schedule ZBVZeroBubble: 3 stages a rank: it runs exactly 2"},
		{"Interleaved1F1B", 4, 2, 9, "schedule Interleaved1F1B: 9 microbatches over 4 pipeline ranks go in max(1, 9 div 4) = 2 rounds, and 9 does not divide by 2: use 8 or 10"},
		{"InterleavedZeroBubble", 4, 2, 11, "schedule InterleavedZeroBubble: 11 microbatches over 4 pipeline ranks go in max(1, 11 div 4) = 2 rounds, and 11 does not divide by 2: use 10 or 12"},
		{"DualPipeV", 4, 2, 7, "schedule DualPipeV: 7 microbatches are fewer than its 8 stages: use at least 8"},
	} {
		_, err := Build(c.name, c.pp, c.perRank, c.microbatches)
		require.EqualError(t, err, c.want)
		_, again := StageRank(c.name, c.pp, c.perRank, c.microbatches)
		require.Equal(t, err, again)
		require.Equal(t, err, Legal(c.name, c.pp, c.perRank, c.microbatches))
	}
}

// cases 4: interleaved schedules take 3, 8 and 10 microbatches over 4 ranks, and say the rule to 9.
func TestRounds(t *testing.T) {
	for _, name := range []string{"Interleaved1F1B", "InterleavedZeroBubble"} {
		for pp := 1; pp <= 8; pp++ {
			for m := 1; m <= 64; m++ {
				_, err := Build(name, pp, 2, m)
				if m%max(1, m/pp) == 0 {
					require.NoError(t, err)
					continue
				}
				hints := regexp.MustCompile(`use (\d+) or (\d+)$`).FindStringSubmatch(err.Error())
				for _, hint := range hints[1:] {
					n, err := strconv.Atoi(hint)
					require.NoError(t, err)
					_, err = Build(name, pp, 2, n)
					require.NoError(t, err, "%d microbatches over %d ranks", n, pp)
				}
			}
		}
	}
}

// Fewer microbatches than stages is slow, not wrong: no hang, and the idle share that arithmetic gives.
func TestFewerMicrobatchesThanStages(t *testing.T) {
	for _, name := range []string{"GPipe", "1F1B"} {
		s, err := Build(name, 4, 1, 1)
		require.NoError(t, err)
		require.NoError(t, Check(s))
		line, err := Simulate(s, Ticks())
		require.NoError(t, err)
		require.Equal(t, 8, line.Makespan)
		require.Equal(t, 0.75, line.Bubble)
		require.Equal(t, []float64{0.75, 0.75, 0.75, 0.75}, line.Idle)
		require.Equal(t, []int{1, 1, 1, 1}, line.InFlight)
		require.Equal(t, [][]int{{0, 7}, {1, 6}, {2, 5}, {3, 4}}, line.Start)
	}
}

// all makes every schedule of up to 8 ranks, 16 microbatches and 3 stages a rank.
func all(t *testing.T, with func(s *Schedule, pp, perRank int)) {
	for _, name := range Names() {
		made := 0
		for pp := 1; pp <= 8; pp++ {
			for perRank := 1; perRank <= 3; perRank++ {
				for m := 1; m <= 16; m++ {
					if s, err := Build(name, pp, perRank, m); err == nil {
						with(s, pp, perRank)
						made++
					}
				}
			}
		}
		require.GreaterOrEqual(t, made, 64, name)
	}
}

// Every schedule is whole and runs to its end, whatever its actions and messages last.
func TestEverySchedule(t *testing.T) {
	all(t, func(s *Schedule, pp, perRank int) {
		at := fmt.Sprintf("%s pp %d, %d a rank, %d microbatches", s.Name, pp, perRank, s.NumMicrobatches)
		require.NoError(t, Check(s), at)
		for _, times := range []Times{{1, 1, 1, 1, 0}, {2, 4, 2, 2, 1}, {3, 7, 5, 1, 100}, {0, 0, 0, 0, 0}} {
			line, err := Simulate(s, times)
			require.NoError(t, err, at)
			for rank, idle := range line.Idle {
				require.True(t, idle >= 0 && idle < 1, at)
				require.Len(t, line.Start[rank], len(s.Ranks[rank]), at)
			}
		}
	})
}

// GPipe and 1F1B take 2(pp+m-1) ticks, and 1F1B holds at most as many microbatches as there are stages from it
// to the end.
func TestSingleStageSchedules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom([]string{"GPipe", "1F1B"}).Draw(t, "name")
		pp, m := rapid.IntRange(1, 9).Draw(t, "pp"), rapid.IntRange(1, 20).Draw(t, "microbatches")
		s, err := Build(name, pp, 1, m)
		require.NoError(t, err)
		line, err := Simulate(s, Ticks())
		require.NoError(t, err)
		require.Equal(t, 2*(pp+m-1), line.Makespan)
		require.InDelta(t, float64(pp-1)/float64(pp+m-1), line.Bubble, 1e-12)
		for stage, n := range line.InFlight {
			want := m
			if name == "1F1B" {
				want = min(m, pp-stage)
			}
			require.Equal(t, want, n)
		}
	})
}

// What the papers promise: interleaving divides 1F1B's bubble by the stages of a rank, and the V without a bubble
// has none but the start, when F, I and W last equally long.
func TestBubbles(t *testing.T) {
	time := func(name string, perRank, m int, times Times) *Timeline {
		s, err := Build(name, 4, perRank, m)
		require.NoError(t, err)
		line, err := Simulate(s, times)
		require.NoError(t, err)
		return line
	}
	for _, c := range []struct {
		name    string
		perRank int
		times   Times // a rank's forward of a microbatch is 12, its backward 24, however many stages share it
		idle    int
	}{
		{"1F1B", 1, Times{F: 12, B: 24}, 3 * (12 + 24)},
		{"GPipe", 1, Times{F: 12, B: 24}, 3 * (12 + 24)},
		{"Interleaved1F1B", 2, Times{F: 6, B: 12}, 3 * (12 + 24) / 2},
		{"Interleaved1F1B", 3, Times{F: 4, B: 8}, 3 * (12 + 24) / 3},
		{"ZBVZeroBubble", 2, Times{F: 6, I: 6, W: 6}, 3 * 6}, // until the last rank starts, no more
	} {
		line := time(c.name, c.perRank, 16, c.times)
		require.Equal(t, 16*36+c.idle, line.Makespan, "%s %d", c.name, c.perRank)
	}
}
