package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// scheduleVerb prints a schedule.
func scheduleVerb() app.Verb {
	kind, format, pp, microbatches, check := "1F1B", "csv", 0, 0, false
	return app.Verb{
		Name: "schedule", Usage: "print, check and time a schedule, a manifest's or one of --kind, --pp and --microbatches", Manifest: true,
		Example: "pp-split schedule --kind 1F1B --pp 4 --microbatches 8 --explain",
		Flags: []cli.Flag{
			app.Choice(&kind, pipeline.Names(), "schedule", "kind", "schedule"),
			app.Count(&pp, "pipeline ranks", "pp"),
			app.Count(&microbatches, "microbatches (default: as many as ranks)", "microbatches"),
			app.Switch(&check, "check only: print no actions", "check"),
			app.Choice(&format, []string{"csv", "json"}, "form of the actions", "format"),
		},
		Run: func(_ context.Context, e *app.Env) error {
			if !e.Given("pp") {
				m, err := e.ReadManifest()
				if err != nil {
					return err
				}
				if m.Pipeline == nil {
					return exit.Input.Errorf("manifest: there is no pipeline section: run pp-split first, or give --pp")
				}
				pp = m.Mesh.Dims.PP
				if !e.Given("kind") {
					kind = m.Pipeline.Schedule
				}
				if !e.Given("microbatches") {
					microbatches = m.Pipeline.NumMicrobatches
				}
			} else if !e.Given("microbatches") {
				microbatches = pp
			}
			s, err := pipeline.Build(kind, pp, 0, microbatches)
			if err == nil {
				err = pipeline.Check(s)
			}
			if err != nil {
				return exit.Input.Wrap(err)
			}
			line, err := pipeline.Simulate(s, pipeline.Ticks())
			if err != nil {
				return err
			}
			explain(e.Explain, s, line)
			if check {
				e.Log.Info("the schedule is valid", "makespan", line.Makespan, "bubble", line.Bubble, "peak_in_flight", fmt.Sprint(line.InFlight))
				return nil
			}
			return e.WriteOut(func(w io.Writer) error { return formats[format](w, s, line) })
		},
	}
}

var formats = map[string]func(io.Writer, *pipeline.Schedule, *pipeline.Timeline) error{"csv": writeCSV, "json": writeJSON}

// writeCSV writes the actions as torchtitan reads them: a row for each rank.
func writeCSV(w io.Writer, s *pipeline.Schedule, _ *pipeline.Timeline) error {
	for _, row := range names(s) {
		if _, err := fmt.Fprintln(w, strings.Join(row, ",")); err != nil {
			return err
		}
	}
	return nil
}

func writeJSON(w io.Writer, s *pipeline.Schedule, t *pipeline.Timeline) error {
	j := json.NewEncoder(w)
	j.SetIndent("", "  ")
	return j.Encode(struct {
		Schedule        string     `json:"schedule"`
		NumStages       int        `json:"num_stages"`
		NumMicrobatches int        `json:"num_microbatches"`
		Makespan        int        `json:"makespan"`
		Bubble          float64    `json:"bubble"`
		PeakInFlight    []int      `json:"peak_in_flight"`
		StageRanks      []int      `json:"stage_ranks"`
		Ranks           [][]string `json:"ranks"`
	}{s.Name, s.NumStages, s.NumMicrobatches, t.Makespan, t.Bubble, t.InFlight, s.StageRank, names(s)})
}

// names lists each rank's actions by name.
func names(s *pipeline.Schedule) [][]string {
	rows := make([][]string, len(s.Ranks))
	for rank, actions := range s.Ranks {
		for _, a := range actions {
			rows[rank] = append(rows[rank], a.String())
		}
	}
	return rows
}

// explain draws s: a row for each rank, a column for each tick, and the numbers.
func explain(w io.Writer, s *pipeline.Schedule, t *pipeline.Timeline) {
	for rank, actions := range s.Ranks {
		cells := make([]string, t.Makespan)
		for i, start := range t.Start[rank] {
			cells[start] = actions[i].String()
		}
		fmt.Fprintf(w, "rank %d ", rank)
		for _, c := range cells {
			fmt.Fprintf(w, " %4s", c)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintf(w, "%s over %d ranks, %d microbatches: %d ticks, %.1f%% of them idle; most microbatches in flight by stage: %v\n",
		s.Name, len(s.Ranks), s.NumMicrobatches, t.Makespan, 100*t.Bubble, t.InFlight)
}
