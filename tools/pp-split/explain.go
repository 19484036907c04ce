package main

import (
	"fmt"
	"io"
	"strings"

	"titan/libtitan/manifest"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// widest is the longest schedule that is drawn, in ticks.
const widest = 1000

// explain draws s, and says when each rank idles and how much each stage holds.
func explain(w io.Writer, s *pipeline.Schedule, t *pipeline.Timeline) {
	if t.Makespan <= widest {
		draw(w, s, t)
	}
	stages := app.Table(w)
	fmt.Fprintln(stages, "STAGE\tRANK\tMICROBATCHES IN FLIGHT")
	for stage, rank := range s.StageRank {
		fmt.Fprintf(stages, "%d\t%d\t%d\n", stage, rank, t.InFlight[stage])
	}
	stages.Flush()
	ranks := app.Table(w)
	fmt.Fprintln(ranks, "RANK\tACTIONS\tIDLE")
	for rank, idle := range t.Idle {
		fmt.Fprintf(ranks, "%d\t%d\t%.1f%%\n", rank, len(s.Ranks[rank]), 100*idle)
	}
	ranks.Flush()
	fmt.Fprintf(w, "%s over %s, %.1f%% of them idle\n", s.Name, extent(s, t), 100*t.Bubble)
}

// extent is how much s has of everything, and how long it takes.
func extent(s *pipeline.Schedule, t *pipeline.Timeline) string {
	return fmt.Sprintf("%s, %s, %s: %s", manifest.Counted(len(s.Ranks), "rank"), manifest.Counted(s.NumStages, "stage"),
		manifest.Counted(s.NumMicrobatches, "microbatch"), manifest.Counted(t.Makespan, "tick"))
}

// draw gives each rank a row and each tick a column, in which an action stands where it starts.
func draw(w io.Writer, s *pipeline.Schedule, t *pipeline.Timeline) {
	for rank, actions := range s.Ranks {
		cells := make([]string, t.Makespan)
		for i, start := range t.Start[rank] {
			if start < len(cells) { // one that lasts no time may start at the end
				cells[start] = actions[i].String()
			}
		}
		row := fmt.Sprintf("rank %d ", rank)
		for _, c := range cells {
			row += fmt.Sprintf(" %4s", c)
		}
		fmt.Fprintln(w, strings.TrimRight(row, " "))
	}
}
