package pipeline

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// A slow last stage holds everybody up: 1F1B over 2 ranks, stage 1 three times as slow.
func TestSimulateStages(t *testing.T) {
	s, err := Build("1F1B", 2, 1, 3)
	require.NoError(t, err)
	line, err := SimulateStages(s, func(stage int) Times {
		if stage == 1 {
			return Times{F: 3, B: 6, Send: 1}
		}
		return Times{F: 1, B: 2, Send: 1}
	})
	require.NoError(t, err)
	// 1F0 waits for 0F0 (1) and the message (1); then rank 1 is busy for 27; then the message back, and 0B2.
	require.Equal(t, []int{2, 5, 11, 14, 20, 23}, line.Start[1])
	require.Equal(t, 32, line.Makespan)
}

// No schedule ends before its busiest rank has done its work and before one microbatch has been through all stages.
func TestSimulateStagesBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Names()).Draw(t, "name")
		pp, m := rapid.IntRange(1, 5).Draw(t, "pp"), rapid.IntRange(1, 12).Draw(t, "m")
		s, err := Build(name, pp, 0, m)
		if err != nil {
			t.Skip("drawn again: no such schedule:", err)
		}
		times := make([]Times, s.NumStages)
		for i := range times {
			d := func(label string) int { return rapid.IntRange(0, 9).Draw(t, label) }
			times[i] = Times{F: d("F"), I: d("I"), W: d("W"), Send: d("send")}
			times[i].B = times[i].I + times[i].W
		}
		line, err := SimulateStages(s, func(stage int) Times { return times[stage] })
		require.NoError(t, err)
		through := 0
		for i, at := range times {
			through += at.F + at.I
			if i > 0 && s.StageRank[i] != s.StageRank[i-1] {
				through += times[i-1].Send + at.Send
			}
		}
		require.GreaterOrEqual(t, line.Makespan, through)
		for rank, actions := range s.Ranks {
			one, err := RankActions(name, pp, 0, m, rank)
			require.NoError(t, err)
			require.Equal(t, actions, one)
			busy := 0
			for _, a := range actions {
				busy += times[a.Stage].Of(a.Kind)
			}
			require.GreaterOrEqual(t, line.Makespan, busy)
		}
	})
}

func TestHeld(t *testing.T) {
	actions, err := RankActions("1F1B", 4, 1, 8, 1)
	require.NoError(t, err)
	require.Equal(t, [][]int{{3}}, Held(actions, []int{1}))
	_, err = RankActions("1F1B", 4, 1, 8, 4)
	require.EqualError(t, err, "schedule 1F1B: rank 4 of 4")
	// Two stages on one rank: first two of stage 1, then one of each.
	steps := []Action{{Stage: 1, Kind: Forward}, {Stage: 1, Kind: Forward, Microbatch: 1}, {Stage: 1, Kind: Backward},
		{Stage: 0, Kind: Forward}, {Stage: 0, Kind: InputGrad}, {Stage: 0, Kind: WeightGrad}}
	require.Equal(t, [][]int{{0, 2}, {1, 1}}, Held(steps, []int{0, 1}))
}

// Whatever a microbatch takes on each stage, the most that a rank holds is one of Held's.
func TestHeldIsThePeak(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		name := rapid.SampledFrom(Names()).Draw(t, "name")
		s, err := Build(name, rapid.IntRange(1, 4).Draw(t, "pp"), 0, rapid.IntRange(1, 12).Draw(t, "m"))
		if err != nil {
			t.Skip("drawn again: no such schedule:", err)
		}
		for rank, actions := range s.Ranks {
			var stages []int
			for stage, r := range s.StageRank {
				if r == rank {
					stages = append(stages, stage)
				}
			}
			size := make([]int, len(stages))
			for i := range size {
				size[i] = rapid.IntRange(0, 9).Draw(t, "size")
			}
			weigh := func(counts []int) (sum int) {
				for i, n := range counts {
					sum += n * size[i]
				}
				return sum
			}
			most := 0
			now := make([]int, len(stages))
			for _, a := range actions {
				switch i := slices.Index(stages, a.Stage); a.Kind {
				case Forward:
					now[i]++
				case Backward, WeightGrad:
					now[i]--
				}
				most = max(most, weigh(now))
			}
			held := 0
			for _, counts := range Held(actions, stages) {
				held = max(held, weigh(counts))
			}
			require.Equal(t, most, held)
		}
	})
}
