package optim

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/manifest"
)

func TestScheduleFactors(t *testing.T) {
	ratio := func(r float64) *float64 { return &r }
	for name, c := range map[string]struct {
		steps, warmup int
		decay         *float64
		want          []float64
		warnings      int
	}{
		"warm-up and decay":        {10, 2, ratio(0.8), []float64{.5, 1, 1, .875, .75, .625, .5, .375, .25, .125}, 0},
		"a flat part":              {10, 4, ratio(0.4), []float64{.25, .5, .75, 1, 1, 1, 1, .75, .5, .25}, 0},
		"all warm-up":              {10, 10, nil, []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1}, 0},
		"more warm-up than steps":  {10, 20, nil, []float64{.1, .2, .3, .4, .5, .6, .7, .8, .9, 1}, 1},
		"no warm-up":               {10, 0, nil, []float64{1, .9, .8, .7, .6, .5, .4, .3, .2, .1}, 0},
		"no decay":                 {10, 2, ratio(0), []float64{.5, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 0},
		"decay cut to what's left": {10, 8, ratio(0.8), []float64{.125, .25, .375, .5, .625, .75, .875, 1, 1, .5}, 1},
		"one step":                 {1, 0, nil, []float64{1}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := NewSchedule(manifest.LRScheduler{WarmupSteps: c.warmup, DecayRatio: c.decay, DecayType: "linear"}, c.steps)
			require.NoError(t, err)
			require.Len(t, s.Warnings, c.warnings)
			for k, want := range c.want {
				require.InDelta(t, want, s.Factor(k), 1e-12, "step %d", k+1)
			}
		})
	}
}

func TestScheduleShapesMeetTheirEnds(t *testing.T) {
	for name := range shapes {
		s, err := NewSchedule(manifest.LRScheduler{DecayType: name, MinLRFactor: 0.1}, 100)
		require.NoError(t, err)
		require.InDelta(t, 1, s.Factor(0), 1e-12, name)
		require.InDelta(t, 0.1, s.Factor(100), 1e-12, name)
		require.InDelta(t, 0.1, s.Factor(1000), 1e-12, name)
	}
	_, err := NewSchedule(manifest.LRScheduler{DecayType: "cubic"}, 1)
	require.ErrorContains(t, err, "cubic")
}

// Two stages with one gradient entry each, 3 and 4: the norm is of both.
func TestNormAndClipOverStages(t *testing.T) {
	require.Equal(t, 5.0, Norm([]float64{9, 16}))
	require.InDelta(t, 0.2, ClipScale(5, 1), 1e-6)
	require.Equal(t, 1.0, ClipScale(0.5, 1))
	require.Equal(t, 1.0, ClipScale(0, 1))
	require.Equal(t, 0.0, ClipScale(math.Inf(1), 1))
}

func TestAdamWConstants(t *testing.T) {
	a := AdamW{manifest.Optimizer{LR: 1e-3, Beta1: 0.9, Beta2: 0.95}}
	s := a.At(2, 0.5, 0.25)
	require.InDelta(t, 5e-4, s.LR, 1e-18)
	require.InDelta(t, 0.19, s.C1, 1e-12)
	require.InDelta(t, 0.0975, s.C2, 1e-12)
}
