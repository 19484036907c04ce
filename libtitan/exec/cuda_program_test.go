package exec

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/device/cuda"
)

// What is put before a step of the plan is done right before it, whether the step itself has work to do or not.
func TestBeforeAStep(t *testing.T) {
	var done []string
	do := func(name string) (Cost, cuda.Work) {
		return Cost{Class: name}, func() error {
			done = append(done, name)
			return nil
		}
	}
	g := &gpuProgram{}
	r := &Runner{gpu: g}
	r.Then(do("inputs"))
	for _, step := range []string{"step 0", "", "step 2", "step 3"} {
		g.at = append(g.at, len(g.works))
		if step != "" {
			r.Then(do(step))
		}
	}
	r.Then(do("end"))
	for _, i := range []int{2, 0, 1, 3} {
		c, w := do([]string{"before 0", "before 1", "before 2", "before 3"}[i])
		r.Before(i, c, w)
	}
	require.NoError(t, g.each(context.Background()))
	want := []string{"inputs", "before 0", "step 0", "before 1", "before 2", "step 2", "before 3", "step 3", "end"}
	require.Equal(t, want, done)
	require.Equal(t, want, g.names)
	for i, c := range g.costs {
		require.Equal(t, want[i], c.Class)
	}
}
