package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Prune deletes the oldest complete steps of a run's folder but the keep newest up to step, which was just written. 0
// keeps all. Step 0, the seed, stays, and so do steps above step, which belong to another attempt, and those that are
// incomplete. A step loses its name before its files, so that no half of one is ever taken for a step.
func Prune(folder string, step, keep int) error {
	complete, _, err := steps(folder)
	if err != nil || keep == 0 {
		return err
	}
	var old []int
	for _, n := range complete {
		if n > 0 && n <= step {
			old = append(old, n)
		}
	}
	for _, n := range old[:max(0, len(old)-keep)] {
		err = errors.Join(err, remove(StepDir(folder, n)))
	}
	return err
}

// remove deletes a folder by way of the name that it had in the making, which [Sweep] clears.
func remove(dir string) error {
	tmp := partialName(dir)
	err := os.RemoveAll(tmp)
	if err == nil {
		err = os.Rename(dir, tmp)
	}
	if err == nil {
		err = os.RemoveAll(tmp)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("checkpoint: deleting %s: %w", dir, err)
	}
	return nil
}

// Sweep clears what killed processes left of steps in the making. What another process is writing stays.
func Sweep(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		base, ok := strings.CutSuffix(e.Name(), partialSuffix)
		if !ok || !e.IsDir() || !strings.HasPrefix(base, ".step-") {
			continue
		}
		s := &stage{tmp: filepath.Join(folder, e.Name()), final: filepath.Join(folder, base[1:])}
		if s.claim() == nil {
			s.discard()
		}
	}
	return err
}
