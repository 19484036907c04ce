package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"runtime/debug"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/snapshot"
	"titan/tools/internal/app"
)

// fileFlags say what is read, and how much of it is printed.
type fileFlags struct {
	device    int
	json      bool
	eachLayer bool
}

func (f *fileFlags) flags() []cli.Flag {
	return []cli.Flag{
		app.Natural(&f.device, "look at device `N` (default: the busiest)", "device"),
		app.Switch(&f.json, "print one JSON object", "json"),
		app.Switch(&f.eachLayer, "of titan-run's trace: tell the layers of a model apart", "each-layer"),
	}
}

// load reads the file that the command names, - for stdin, and finds the device.
func (f *fileFlags) load(e *app.Env) (*snapshot.Snapshot, *snapshot.Device, error) {
	debug.SetGCPercent(50) // a file of a gigabyte is read at once: half as much garbage beside it is enough
	path := e.Args[0]
	var s *snapshot.Snapshot
	var err error
	if path == "-" {
		s, err = snapshot.Read(e.In)
	} else {
		s, err = snapshot.ReadFile(path)
	}
	if err != nil {
		return nil, nil, named(path, err)
	}
	if !f.eachLayer {
		s.MergeLayers()
	}
	device := -1
	if e.Given("device") {
		device = f.device
	}
	d, err := s.Device(device)
	return s, d, err
}

// named says which file an error is of, unless it does so itself.
func named(path string, err error) error {
	var missing *fs.PathError
	if errors.As(err, &missing) {
		return err
	}
	return &ofFile{path, err}
}

type ofFile struct {
	path string
	err  error
}

func (e *ofFile) Error() string { return e.path + ": " + e.err.Error() }
func (e *ofFile) Unwrap() error { return e.err }

// snapshotFlags say what is made of a snapshot.
type snapshotFlags struct {
	fileFlags
	html, svg, png string
	top            int
}

func snapshotVerb() app.Verb {
	f := snapshotFlags{top: 12}
	return app.Verb{
		Name: "snapshot", Args: "FILE",
		Usage:   "say where the memory of a run went: PyTorch's CUDA memory snapshot, pickle or JSON",
		Example: "memprof snapshot trace.json --html memory.html",
		Flags: append(f.flags(),
			app.Text(&f.html, "write a page with an interactive timeline to `FILE`, or for - to stdout in place of the report", "html"),
			app.Text(&f.svg, "draw the timeline to `FILE`, or -", "svg"),
			app.Text(&f.png, "draw the timeline to `FILE`, or -", "png"),
			app.Natural(&f.top, "list `N` holders", "top")),
		Run: func(_ context.Context, e *app.Env) error { return f.run(e) },
	}
}

// onStdout is how many pictures go to stdout.
func (f *snapshotFlags) onStdout() (n int) {
	for _, path := range []string{f.html, f.svg, f.png} {
		if path == "-" {
			n++
		}
	}
	return n
}

func (f *snapshotFlags) run(e *app.Env) error {
	if n := f.onStdout(); n > 1 || n == 1 && f.json {
		return exit.Usage.Errorf("stdout takes one of --html, --svg, --png and --json: name a file for the others")
	}
	s, d, err := f.load(e)
	if err != nil {
		return err
	}
	r := snapshot.Analyze(s, d)
	for _, out := range []struct {
		path  string
		write func(io.Writer) error
	}{
		{f.html, func(w io.Writer) error { return writePage(w, e.Args[0], s, r) }},
		{f.svg, func(w io.Writer) error { return writeSVG(w, e.Args[0], r) }},
		{f.png, func(w io.Writer) error { return writePNG(w, e.Args[0], r) }},
	} {
		if out.path == "" {
			continue
		}
		if err := e.WriteFile(out.path, out.write); err != nil {
			return err
		}
	}
	switch {
	case f.onStdout() > 0:
		return nil
	case f.json:
		return app.WriteJSON(e.Out, r)
	}
	return writeReport(e.Out, r, f.top)
}
