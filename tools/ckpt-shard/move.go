package main

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/tools/internal/app"
)

// moveFlags are the flags of every verb that writes a checkpoint.
func moveFlags(o *checkpoint.MoveOptions) []cli.Flag {
	o.MaxMemory = 256 << 20
	return []cli.Flag{
		app.Bytes(&o.MaxMemory, "memory for buffers", "max-memory"),
		app.Natural(&o.Jobs, "move `N` blocks at a time (default: one a core)", "jobs", "j"),
		app.Switch(&o.Replace, "replace a checkpoint that stands where OUT goes, once the new one is whole", "force"),
		app.Switch(&o.KeepNames, "leave names as they are: no wrapper parts stripped, none converted", "keep-names"),
	}
}

// moving runs a verb's move to OUT and tells how far it is and what it wrote.
func moving(e *app.Env, name string, o *checkpoint.MoveOptions, move func() error) error {
	switch e.Args[1] {
	case "":
		return exit.Usage.Errorf("OUT is empty: name a folder or a file")
	case "-":
		return exit.Usage.Errorf("OUT is -: a checkpoint is no stream: name a folder or a file (./- if it is called so)")
	}
	var bar *app.Bar
	o.Note = func(s string) { e.Log.Info(s) }
	o.Begin = func(total int64) func(int64) {
		bar = e.Bytes(name, total)
		return bar.Add
	}
	err := move()
	bar.Close()
	if err != nil {
		return err
	}
	out := e.Args[1]
	src, err := checkpoint.OpenSource(out)
	if err != nil {
		return err
	}
	defer src.Close()
	e.Log.Info(fmt.Sprintf("%s: %s in %s, %s of tensors", out, manifest.Counted(len(src.Items()), "item"),
		manifest.Counted(checkpoint.NumFiles(src), "file"), manifest.HumanBytes(checkpoint.TensorBytes(src))))
	return explainFiles(e.Explain, out)
}

// explainFiles prints the files of a checkpoint, hidden ones too.
func explainFiles(w io.Writer, path string) error {
	t := app.Table(w)
	fmt.Fprintln(t, "FILE\tSIZE\tBYTES")
	err := filepath.WalkDir(path, func(file string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			fmt.Fprintf(t, "%s\t%s\t%s\n", file, manifest.HumanBytes(info.Size()), app.Grouped(info.Size()))
		}
		return err
	})
	return cmp.Or(err, t.Flush())
}

// layoutFlags say how a DCP folder is cut.
type layoutFlags struct {
	world            int
	manifest, layout string
	read             *manifest.Manifest
}

func (f *layoutFlags) flags() []cli.Flag {
	return []cli.Flag{
		app.AtLeast(&f.world, 1, "cut every tensor by rows over `N` ranks", "world-size", "ranks", "n"),
		app.Text(&f.manifest, "cut by the mesh and stages of a manifest `FILE`", "manifest", "m"),
		app.Text(&f.layout, "cut by `DEGREES` such as dp_shard=4,tp=2; they override the manifest's", "layout"),
	}
}

// layout is what the flags say, once loaded; nil: nothing.
func (f *layoutFlags) get() (*checkpoint.Layout, error) {
	switch {
	case f.world != 0 && f.manifest+f.layout != "":
		return nil, exit.Usage.Errorf("--world-size cuts by rows alone: give it, or --manifest and --layout")
	case f.world != 0:
		return checkpoint.WorldLayout(f.world)
	case f.manifest == "" && f.layout == "":
		return nil, nil
	case f.manifest == "":
		one, err := checkpoint.WorldLayout(1)
		if err != nil {
			return nil, err
		}
		return one.With(f.layout)
	}
	return checkpoint.ManifestLayout(f.read, f.layout)
}

// load reads the manifest, if one is named.
func (f *layoutFlags) load(e *app.Env) (err error) {
	if f.manifest != "" {
		f.read, err = readManifest(e, f.manifest)
	}
	return err
}

// readManifest reads and checks a manifest.
func readManifest(e *app.Env, path string) (*manifest.Manifest, error) {
	f, err := e.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := manifest.Read(f)
	if err == nil {
		err = manifest.Validate(m)
	}
	if err != nil {
		return nil, exit.Input.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// readModel finds the model that --model names: a preset, or a config.json.
func readModel(name string) (*llama3.Config, error) {
	p, unknown := llama3.Find(name)
	if unknown == nil {
		return &p.Config, nil
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, unknown
	}
	defer f.Close()
	c, err := llama3.ReadHuggingFace(f)
	if err != nil {
		return nil, exit.Input.Errorf("%s: %w", name, err)
	}
	return &c, nil
}
