package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/pipeline"
	"titan/tools/internal/app"
)

// source says which schedule is meant.
type source struct {
	kind, csvFile                   string
	pp, stagesPerRank, microbatches int
}

// scheduleVerb prints a schedule.
func scheduleVerb() app.Verb {
	from := source{kind: "1F1B"}
	format, times, picture, check, lowered := "csv", "", "", false, false
	return app.Verb{
		Name: "schedule", Usage: "print, check and time a schedule: a manifest's, a file's or one of --kind, --pp and --microbatches", Manifest: true,
		Example: "pp-split schedule --kind 1F1B --pp 4 --microbatches 8 --explain",
		Flags: []cli.Flag{
			app.Text(&from.csvFile, "read the schedule from `FILE`: PyTorch's CSV, of work alone or lowered", "csv"),
			app.Choice(&from.kind, pipeline.Names(), "schedule", "kind", "schedule"),
			app.Count(&from.pp, "pipeline ranks", "pp"),
			app.Count(&from.stagesPerRank, "stages of a rank (default: the fewest that the schedule allows)", "stages-per-rank"),
			app.Count(&from.microbatches, "microbatches (default: twice as many as ranks)", "microbatches"),
			app.Text(&times, "how long actions and messages last, as in `F=2,B=4,I=2,W=2,send=1` (default: 1, messages 0); on stages that differ, as in F=2,B=4;3:F=5,B=9", "times"),
			app.Text(&picture, "draw the schedule into `FILE`.svg or FILE.png", "plot"),
			app.Switch(&check, "check only: print no actions", "check"),
			app.Switch(&lowered, "print sends, receives and reductions, too", "lowered"),
			app.Choice(&format, []string{"csv", "json", "svg"}, "form of the actions", "format"),
		},
		Run: func(_ context.Context, e *app.Env) error {
			last, err := parseTimes(times)
			if err != nil {
				return exit.Usage.Errorf("--times: %w", err)
			}
			s, err := from.schedule(e)
			if err != nil {
				return err
			}
			line, err := pipeline.SimulateStages(s, last.of)
			if err != nil {
				return exit.Input.Wrap(err)
			}
			if picture != "" {
				if err := plotStages(picture, s, line, last.of); err != nil {
					return err
				}
			}
			explain(e.Explain, s, line)
			if check {
				e.Log.Info("the schedule is valid", "stage_ranks", brief(s.StageRank), "microbatches", s.NumMicrobatches,
					"makespan", line.Makespan, "bubble", line.Bubble, "peak_in_flight", brief(line.InFlight))
				return nil
			}
			ranks := s.Ranks
			if lowered {
				ranks = s.Lower()
			}
			return e.WriteOut(func(w io.Writer) error {
				switch format {
				case "json":
					return writeJSON(w, s, ranks, line)
				case "svg":
					return writeSVG(w, s, line, last)
				}
				return pipeline.WriteCSV(w, ranks)
			})
		},
	}
}

// brief is a list for a log's line.
func brief(list []int) string {
	const most = 128
	if len(list) > most {
		return fmt.Sprintf("%v and %d more", list[:most], len(list)-most)
	}
	return fmt.Sprint(list)
}

// schedule reads or makes the schedule that is meant, and checks it.
func (from source) schedule(e *app.Env) (*pipeline.Schedule, error) {
	if from.csvFile != "" {
		for _, flag := range []string{"kind", "pp", "stages-per-rank", "microbatches"} {
			if e.Given(flag) {
				return nil, exit.Usage.Errorf("--%s and --csv exclude each other: the file says it", flag)
			}
		}
		return readCSV(e.Open, from.csvFile)
	}
	s, err := from.build(e)
	if err != nil {
		return nil, err
	}
	return s, exit.Input.Wrap(pipeline.Check(s))
}

func (from source) build(e *app.Env) (*pipeline.Schedule, error) {
	if !e.Given("pp") {
		m, err := e.ReadManifest()
		if err != nil {
			return nil, err
		}
		p := m.Pipeline
		if p == nil {
			return nil, exit.Input.Errorf("manifest: there is no pipeline section: run pp-split first, or give --pp")
		}
		if !e.Given("kind") && !e.Given("microbatches") && !e.Given("stages-per-rank") {
			s, err := m.Schedule()
			return s, exit.Input.Wrap(err)
		}
		from.pp = m.Mesh.Dims.PP
		if !e.Given("kind") {
			from.kind = p.Schedule
		}
		if !e.Given("microbatches") {
			from.microbatches = p.NumMicrobatches
		}
	} else if !e.Given("microbatches") {
		from.microbatches = 2 * from.pp
	}
	s, err := pipeline.Build(from.kind, from.pp, from.stagesPerRank, from.microbatches)
	return s, exit.Input.Wrap(err)
}

// stageTimes is how long the actions of stages last: of those that have their own, and of the others.
type stageTimes struct {
	all pipeline.Times
	own map[int]pipeline.Times
}

func (t stageTimes) of(stage int) pipeline.Times {
	if own, ok := t.own[stage]; ok {
		return own
	}
	return t.all
}

// parseTimes reads F=2,B=4,I=2,W=2,send=1, then for stages that differ ;3:F=5,B=9. What is left out keeps its tick, or
// what stands for all.
func parseTimes(text string) (stageTimes, error) {
	t := stageTimes{pipeline.Ticks(), map[int]pipeline.Times{}}
	if text == "" {
		return t, nil
	}
	for i, list := range strings.Split(text, ";") {
		stage, words, own := strings.Cut(list, ":")
		if !own {
			if i > 0 {
				return t, fmt.Errorf("%q: want a stage's number, :, and its times", list)
			}
			stage, words = "", list
		}
		times := t.all
		for word := range strings.SplitSeq(words, ",") {
			if err := parseTime(&times, word); err != nil {
				return t, err
			}
		}
		if !own {
			t.all = times
			continue
		}
		n, err := strconv.ParseUint(stage, 10, 20)
		if err != nil {
			return t, fmt.Errorf("%q: want a stage's number before the colon", list)
		}
		t.own[int(n)] = times
	}
	return t, nil
}

func parseTime(t *pipeline.Times, word string) error {
	of := map[string]*int{"F": &t.F, "B": &t.B, "I": &t.I, "W": &t.W, "send": &t.Send}
	name, value, _ := strings.Cut(word, "=")
	n, err := strconv.ParseUint(value, 10, 20)
	if of[name] == nil || err != nil {
		return fmt.Errorf("%q: want F, B, I, W or send, =, and a whole number below a million", word)
	}
	*of[name] = int(n)
	return nil
}

func writeSVG(w io.Writer, s *pipeline.Schedule, t *pipeline.Timeline, times stageTimes) error {
	p, err := layOut(s, t, func(a pipeline.Action) int { return times.of(a.Stage).Of(a.Kind) })
	if err != nil {
		return exit.Input.Wrap(err)
	}
	return p.svg(w)
}

func writeJSON(w io.Writer, s *pipeline.Schedule, ranks [][]pipeline.Action, t *pipeline.Timeline) error {
	rows := make([][]string, len(ranks))
	for rank, actions := range ranks {
		rows[rank] = pipeline.Cells(actions)
	}
	return app.WriteJSON(w, struct {
		Schedule        string     `json:"schedule"`
		NumStages       int        `json:"num_stages"`
		NumMicrobatches int        `json:"num_microbatches"`
		Makespan        int        `json:"makespan"`
		Bubble          float64    `json:"bubble"`
		Idle            []float64  `json:"idle"`
		PeakInFlight    []int      `json:"peak_in_flight"`
		StageRanks      []int      `json:"stage_ranks"`
		Ranks           [][]string `json:"ranks"`
	}{s.Name, s.NumStages, s.NumMicrobatches, t.Makespan, t.Bubble, t.Idle, t.InFlight, s.StageRank, rows})
}
