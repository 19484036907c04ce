package parallel

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/plan"
)

// However a program is arranged for a GPU, each step finds what it reads as the step that made it left it: no value that is still
// read was written over. The arena is within 3% of what is live at once.
func TestNothingIsWrittenOver(t *testing.T) {
	programs := map[string]func() *plan.Program{
		"one rank": func() *plan.Program { return oneRank(t, false) }, "one rank, tied": func() *plan.Program { return oneRank(t, true) },
	}
	for _, recipe := range []string{"off", "tensorwise", "rowwise", "rowwise_with_gw_hp"} {
		programs["fsdp, "+recipe] = func() *plan.Program { return fsdpProgram(t, recipe, 0) }
	}
	for name, program := range programs {
		t.Run(name, func(t *testing.T) {
			p := program()
			p.Rearrange()
			notWrittenOver(t, p)
			p.PlaceWindows()
			notWrittenOver(t, p)
			p.PlaceGrads()
			notWrittenOver(t, p)
			require.LessOrEqual(t, float64(p.ArenaBytes), 1.03*float64(plan.Measure(p).PeakBytes))
		})
	}
}

func notWrittenOver(t *testing.T, p *plan.Program) {
	there := map[*plan.Slot]bool{}
	grad := func(s *plan.Slot) bool { return s.Class == plan.Grad || s.Class == plan.Rows }
	planned := func(s *plan.Slot) bool {
		return s.Class == plan.Arena || s.Class == plan.Window || grad(s) && p.GradsInArena
	}
	for i := range p.Steps {
		s := &p.Steps[i]
		for k, in := range s.In {
			require.True(t, !planned(in.Root()) || there[in.Root()], "step %d, %s: input %d, %v, is no longer there", i, s, k, in.Type)
		}
		for k, out := range s.Out {
			added := k < len(s.Add) && s.Add[k] && planned(out.Root())
			require.True(t, !added || there[out.Root()], "step %d, %s: what result %d is added to is no longer there", i, s, k)
		}
		writes := s.Out
		if s.Scratch != nil {
			writes = append([]*plan.Slot{s.Scratch}, s.Out...)
		}
		for _, out := range writes {
			o := out.Root()
			if !planned(o) {
				continue
			}
			for other := range there {
				if other != o && (other.Class == plan.Window) == (o.Class == plan.Window) && other.Offset < o.Offset+o.Bytes() && o.Offset < other.Offset+other.Bytes() {
					delete(there, other)
				}
			}
			there[o] = true
		}
	}
	if p.GradsInArena {
		for _, s := range p.Slots {
			require.True(t, !grad(s) || there[s], fmt.Sprint("the gradient of ", s.Name))
		}
	}
}
