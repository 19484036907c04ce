// Command compare sets what runs did beside what their manifests said: for each RUN.json with an estimate, RUN.jsonl is
// what titan-run wrote of it with --metrics. A table for people goes to stdout, a picture to --plot.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

func main() {
	plot := flag.String("plot", "", "draw losses and times into this `FILE`.svg")
	flag.Parse()
	if err := compare(flag.Args(), *plot, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(exit.Code(err))
	}
}

// run is one mesh, planned and trained.
type run struct {
	name      string
	predicted prediction
	measured  measurement
}

type prediction struct {
	seconds float64 // a step
	bytes   int64   // of all ranks
}

type measurement struct {
	seconds float64 // the median step's, after the first two
	fastest float64
	bytes   int64 // the most that the process held
	losses  []float64
}

func compare(paths []string, plot string, w io.Writer) error {
	if len(paths) == 0 {
		return exit.Usage.Errorf("no runs: name their manifests, RUN.json beside RUN.jsonl")
	}
	var runs []run
	for _, path := range paths {
		r, err := read(path)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		runs = append(runs, r)
	}
	if plot != "" {
		if err := os.WriteFile(plot, draw(runs), 0o666); err != nil {
			return err
		}
	}
	return table(w, runs)
}

// read reads a manifest and its metrics.
func read(path string) (r run, err error) {
	r.name = strings.TrimSuffix(filepath.Base(path), ".json")
	f, err := os.Open(path)
	if err != nil {
		return r, err
	}
	defer f.Close()
	m, err := manifest.Read(f)
	if err != nil {
		return r, err
	}
	if m.Estimate == nil || m.Mesh == nil {
		return r, exit.Input.Errorf("no estimate: fill it with meshplan estimate")
	}
	r.predicted.seconds = m.Estimate.StepSeconds
	for _, rank := range m.Estimate.Ranks {
		r.predicted.bytes += rank.PeakBytes * int64(m.Mesh.WorldSize/len(m.Estimate.Ranks))
	}
	r.measured, err = readMetrics(strings.TrimSuffix(path, ".json") + ".jsonl")
	return r, err
}

// warm is the number of steps that are not timed: memory is touched for the first time in them.
const warm = 2

func readMetrics(path string) (m measurement, err error) {
	f, err := os.Open(path)
	if err != nil {
		return m, err
	}
	defer f.Close()
	var seconds []float64
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var step struct {
			Loss    float64 `json:"loss"`
			Seconds float64 `json:"step_seconds"`
			Bytes   int64   `json:"memory_bytes"`
		}
		if err := json.Unmarshal(lines.Bytes(), &step); err != nil {
			return m, exit.Input.Errorf("%s: line %d: %v", path, len(seconds)+1, err)
		}
		seconds, m.losses = append(seconds, step.Seconds), append(m.losses, step.Loss)
		m.bytes = max(m.bytes, step.Bytes)
	}
	if len(seconds) <= warm {
		return m, exit.Input.Errorf("%s: %d steps: want more than %d", path, len(seconds), warm)
	}
	slices.Sort(seconds[warm:])
	m.seconds, m.fastest = seconds[warm:][(len(seconds)-warm)/2], seconds[warm]
	return m, nil
}

const mib = 1 << 20

// table writes a row a run.
func table(w io.Writer, runs []run) error {
	rows := []string{
		"| mesh | first loss | last loss | ms a step, predicted | median | fastest | off the fastest | MiB of all ranks, predicted | of the process, its program too |",
		"|---|---|---|---|---|---|---|---|---|",
	}
	for _, r := range runs {
		p, m := r.predicted, r.measured
		rows = append(rows, fmt.Sprintf("| %s | %.5f | %.5f | %.1f | %.1f | %.1f | %+.0f%% | %.1f | %.1f |", r.name, m.losses[0], m.losses[len(m.losses)-1],
			1e3*p.seconds, 1e3*m.seconds, 1e3*m.fastest, 100*(p.seconds/m.fastest-1), float64(p.bytes)/mib, float64(m.bytes)/mib))
	}
	_, err := fmt.Fprintln(w, strings.Join(rows, "\n"))
	return err
}
