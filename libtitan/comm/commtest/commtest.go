// Package commtest holds engines to what [comm.Comm] promises: [Run] plays every case on an engine, in one process
// or in many. Ranks compute what they must get from a seed that they share, so equal bits on all ranks and on all
// engines need no messages to compare.
package commtest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"titan/libtitan/comm"
)

// Case is what each rank does.
type Case struct {
	Name    string
	Sizes   []int // numbers of ranks to play it with
	Timeout time.Duration
	Rank    func(ctx context.Context, c comm.Comm) error
	Errors  []string // by rank, a part of the error it must end with; "" where that may be any; nil: all end well
}

// Start plays a case on an engine and returns each rank's error text, "" where it ended well.
type Start func(t *testing.T, c Case, size int) []string

// Run plays all cases.
func Run(t *testing.T, start Start) {
	for _, c := range Cases {
		for _, size := range c.Sizes {
			t.Run(fmt.Sprintf("%s/%d ranks", c.Name, size), func(t *testing.T) {
				began := time.Now()
				errs := start(t, c, size)
				require.Len(t, errs, size)
				for r, got := range errs {
					if c.Errors == nil {
						require.Empty(t, got, "rank %d", r)
						continue
					}
					require.Contains(t, got, c.Errors[r], "rank %d", r)
					require.NotContains(t, got, "\n", "rank %d", r)
				}
				require.Less(t, time.Since(began), time.Minute)
			})
		}
	}
}

// Find is the case with a name, for a rank that runs in a process of its own.
func Find(name string) (Case, error) {
	for _, c := range Cases {
		if c.Name == name {
			return c, nil
		}
	}
	return Case{}, fmt.Errorf("no case %q", name)
}

// Cases are all cases: what must work, one after another in one job, and what must fail.
var Cases = append([]Case{{Name: "works", Sizes: []int{1, 2, 3, 4, 8}, Rank: works}}, failures...)

func works(ctx context.Context, c comm.Comm) error {
	for _, part := range []struct {
		name string
		rank func(ctx context.Context, c comm.Comm) error
	}{
		{"all gather", gather},
		{"reduce scatter", scatter},
		{"all reduce", reduce},
		{"all to all", allToAll},
		{"groups", groups},
		{"tags", tags},
		{"all at once", allAtOnce},
		{"sum and barrier", sumAndBarrier},
	} {
		if err := part.rank(ctx, c); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}
