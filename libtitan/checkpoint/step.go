package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/exit"
)

// Latest asks [FindStep] for the highest complete step.
const Latest = -1

// ErrNoStep is the answer of [FindStep] where a folder holds no complete step at all.
var ErrNoStep = errors.New("no complete checkpoint")

// Step is one checkpoint of a run.
type Step struct {
	Number   int
	Dir      string
	Warnings []string // about what was passed over
}

// StepDir is the folder of step n below a run's checkpoint folder, as torchtitan names it.
func StepDir(folder string, n int) string { return filepath.Join(folder, "step-"+strconv.Itoa(n)) }

// FindStep finds step want, or the Latest, among folder's step-N folders, by number. Only those with a .metadata count,
// which is written last, or of Hugging Face's form. Other names (step-30.tmp, step-5-mybackup) are no steps.
func FindStep(folder string, want int) (Step, error) {
	complete, partial, err := steps(folder)
	if err != nil {
		return Step{}, err
	}
	if want != Latest {
		switch {
		case slices.Contains(complete, want):
			return Step{Number: want, Dir: StepDir(folder, want)}, nil
		case slices.Contains(partial, want):
			return Step{}, exit.Input.Errorf("checkpoint %s: incomplete (no .metadata); %s", StepDir(folder, want), there(complete))
		}
		return Step{}, exit.Input.Errorf("checkpoint %s: no step %d; %s", folder, want, there(complete))
	}
	var s Step
	if len(complete) > 0 {
		s.Number = slices.Max(complete)
		s.Dir = StepDir(folder, s.Number)
	}
	for _, n := range partial {
		if len(complete) == 0 || n > s.Number {
			s.Warnings = append(s.Warnings, fmt.Sprintf("%s is incomplete (no .metadata) and passed over", StepDir(folder, n)))
		}
	}
	if len(complete) == 0 {
		return s, exit.Input.Errorf("checkpoint %s: %w", folder, ErrNoStep)
	}
	return s, nil
}

// steps lists the step numbers in folder, complete and not. A folder that is not there holds none.
func steps(folder string) (complete, partial []int, err error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "step-")
		n, err := strconv.Atoi(digits)
		if !ok || err != nil || n < 0 || strconv.Itoa(n) != digits {
			continue
		}
		if isComplete(filepath.Join(folder, e.Name())) {
			complete = append(complete, n)
		} else {
			partial = append(partial, n)
		}
	}
	slices.Sort(complete)
	slices.Sort(partial)
	return complete, partial, nil
}

// isComplete reports whether a step's folder is complete: a DCP folder, or one in Hugging Face's form.
func isComplete(dir string) bool {
	return slices.ContainsFunc([]string{".metadata", "model.safetensors.index.json", "model.safetensors"}, func(name string) bool {
		_, err := os.Stat(filepath.Join(dir, name))
		return err == nil
	})
}

func there(complete []int) string {
	if len(complete) == 0 {
		return "no complete step is there"
	}
	return "there are steps " + strings.Trim(strings.ReplaceAll(fmt.Sprint(complete), " ", ", "), "[]")
}
