package train

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// checkFolders makes sure, before what is learnt can be lost, that the folders of the run can be written in.
func (r *run) checkFolders() error {
	if r.left.Step >= r.job.Manifest.Training.Steps {
		return nil // nothing will be
	}
	if r.saves() {
		folder := r.job.Manifest.Checkpoint.Folder
		if err := writable(folder); err != nil {
			return exit.Input.Errorf("checkpoint.folder %s: %w: choose another with --checkpoint-dir", folder, err)
		}
		r.checkRoom(folder)
	}
	if r.TensorBoard != "" {
		if err := writable(r.TensorBoard); err != nil {
			return exit.Input.Errorf("--tensorboard %s: %w", r.TensorBoard, err)
		}
	}
	return nil
}

// checkRoom warns if the disk of a folder has no room for a checkpoint: parameters and both moments, float32.
func (r *run) checkRoom(folder string) {
	dir, _, err := existing(folder)
	if err != nil {
		return
	}
	if left, needed := checkpoint.Left(dir), 12*r.job.Manifest.Model.Config.NumParams(); needed > left {
		r.Log.Warn(fmt.Sprintf("checkpoint.folder %s: a checkpoint takes %s, its disk has %s left: training goes on, saving will fail", folder, manifest.HumanBytes(needed), manifest.HumanBytes(left)))
	}
}

// existing is a folder, or the nearest above it that is there.
func existing(folder string) (dir string, info fs.FileInfo, err error) {
	dir = filepath.Clean(folder)
	info, err = os.Stat(dir)
	for (errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)) && dir != filepath.Dir(dir) {
		dir = filepath.Dir(dir)
		info, err = os.Stat(dir)
	}
	return dir, info, err
}

// writable tries whether a folder, or the nearest above it that is there, can be written in. It leaves nothing.
func writable(folder string) error {
	dir, info, err := existing(folder)
	switch {
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	}
	f, err := os.CreateTemp(dir, ".titan-*")
	if err != nil {
		return fmt.Errorf("nothing can be made in %s: %w", dir, cause(err))
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// cause is why a file call failed, without the name that it was called with.
func cause(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}
