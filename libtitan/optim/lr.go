// Package optim holds the update rules of training: the learning rate over a run ([NewSchedule]), and what AdamW
// does with a gradient ([AdamW]).
package optim

import (
	"fmt"
	"math"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Schedule scales the learning rate: a warm-up, a flat part, a decay (torchtitan's rule).
type Schedule struct {
	warmup, flat, decay int // steps
	shape               func(p float64) float64
	floor               float64
	Warnings            []string // what was cut to fit the run
}

// shapes map the progress p of the decay, 0 to 1, to what is left of the learning rate.
var shapes = map[string]func(p float64) float64{
	"linear": func(p float64) float64 { return 1 - p },
	"sqrt":   func(p float64) float64 { return 1 - math.Sqrt(p) },
	"cosine": func(p float64) float64 { return (1 + math.Cos(math.Pi*p)) / 2 },
}

// NewSchedule lays c out over a run of steps.
func NewSchedule(c manifest.LRScheduler, steps int) (*Schedule, error) {
	total := steps
	if c.TotalSteps != nil {
		total = *c.TotalSteps
	}
	s := &Schedule{warmup: c.WarmupSteps, shape: shapes[c.DecayType], floor: c.MinLRFactor}
	if s.shape == nil {
		return nil, exit.Input.Errorf("lr_scheduler.decay_type: %q is not among linear, sqrt, cosine", c.DecayType)
	}
	if s.warmup > total {
		s.Warnings = append(s.Warnings, fmt.Sprintf("lr_scheduler.warmup_steps: %d is cut to the run's %d steps", s.warmup, total))
		s.warmup = total
	}
	s.decay = total - s.warmup
	if c.DecayRatio != nil {
		want := int(math.RoundToEven(float64(total) * *c.DecayRatio))
		if want > s.decay {
			s.Warnings = append(s.Warnings, fmt.Sprintf("lr_scheduler.decay_ratio: %v of %d steps is cut to the %d that warm-up leaves", *c.DecayRatio, total, s.decay))
		}
		s.decay = min(want, s.decay)
	}
	// One step more than the run has, so that its last step still learns.
	s.flat = total + 1 - s.warmup - s.decay
	return s, nil
}

// Factor is what the learning rate is multiplied by in the step after done steps.
func (s *Schedule) Factor(done int) float64 {
	switch {
	case done < s.warmup:
		return float64(done+1) / float64(s.warmup)
	case done < s.warmup+s.flat || s.decay == 0:
		return 1
	}
	p := min(1, float64(done+1-s.warmup-s.flat)/float64(s.decay))
	return s.floor + (1-s.floor)*s.shape(p)
}
