// Command seedinit writes the checkpoint that a run starts from.
package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/urfave/cli/v2"

	"titan/libtitan/checkpoint"
	"titan/libtitan/dtype"
	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/libtitan/train"
	"titan/tools/internal/app"
)

const example = `meshplan --model tiny-259 --pp 2 | pp-split | seedinit --out seed --seed 42 > job.json`

func main() { app.Main(tool()) }

func tool() app.Tool {
	o := options{rng: train.Philox, dtype: "float32", files: 1}
	o.write.MaxMemory = 256 << 20
	return app.Tool{
		Name:  "seedinit",
		Usage: "write the seed checkpoint",
		About: "Writes the initial weights of the manifest's model as a PyTorch DCP folder, and passes the manifest on " +
			"with checkpoint.initial_load_path set to it. The weights depend on the model, --seed, --rng and --dtype alone. " +
			"A folder that holds just these weights already is kept. With --verify it writes nothing and compares a folder with them.",
		Example:  example,
		Flags:    o.flags(),
		Run:      o.run,
		Manifest: true,
	}
}

type options struct {
	out, verify string
	seed        uint64
	rng, dtype  string
	files       int
	write       checkpoint.WriteOptions
}

func (o *options) flags() []cli.Flag {
	return []cli.Flag{
		app.Folder(&o.out, "write the folder `DIR`, whole or not at all", "out"),
		app.Folder(&o.verify, "write nothing: make the weights again and compare the folder `DIR` with them", "verify"),
		app.Count(&o.seed, "seed (default: the manifest's training.seed)", "seed"),
		app.Choice(&o.rng, []string{train.Philox, train.Torch}, "source of random numbers", "rng"),
		app.DType(&o.dtype, []string{"float32", "bfloat16"}, "type of the stored weights", "dtype"),
		app.Within(&o.files, 1, 1<<16, "cut every weight by rows over `N` files", "shards"),
		app.Switch(&o.write.Replace, "replace a folder that holds something else", "force"),
		app.Bytes(&o.write.MaxMemory, "memory for buffers", "max-memory"),
		app.Natural(&o.write.Jobs, "work on `N` parts at a time (default: one a core)", "jobs", "j"),
	}
}

func (o *options) run(ctx context.Context, e *app.Env) error {
	if (o.out == "") == (o.verify == "") {
		return exit.Usage.Errorf("say where: --out DIR writes a folder, --verify DIR checks one (give one of the two)")
	}
	m, err := e.ReadManifest()
	if err != nil {
		return err
	}
	if !e.Given("seed") {
		o.seed = m.Training.Seed
	}
	dir := o.out
	if o.verify != "" {
		dir = o.verify
		var whole string
		if whole, err = o.check(ctx, e, m, dir); err == nil {
			e.Log.Info(dir + ": whole: " + whole)
		}
	} else {
		err = o.make(ctx, e, m)
	}
	if err != nil {
		return err
	}
	if m.Checkpoint == nil {
		m.Checkpoint = &manifest.Checkpoint{}
	}
	m.Checkpoint.InitialLoadPath = dir
	return e.WriteManifest(m)
}

// state is the checkpoint asked for, and its size in bytes.
func (o *options) state(m *manifest.Manifest, files int) (s checkpoint.State, size int64, err error) {
	dt, err := dtype.Parse(o.dtype)
	if err != nil {
		return s, 0, exit.Usage.Wrap(err)
	}
	params := llama3.New(m.Model.Config).Params()
	for _, p := range params {
		size += p.NumElements() * int64(dt.Size())
	}
	s, err = train.SeedState(params, o.seed, o.rng, dt, files)
	return s, size, err
}

// make writes the folder, unless it is there.
func (o *options) make(ctx context.Context, e *app.Env, m *manifest.Manifest) error {
	_, err := os.Stat(filepath.Join(o.out, ".metadata"))
	if err == nil && !o.write.Replace {
		_, err := o.check(ctx, e, m, o.out)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return exit.Input.Errorf("%s holds another checkpoint (%w): choose another folder, or --force to replace it", o.out, err)
		}
		e.Log.Info(o.out + " holds these weights already: kept")
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	s, size, err := o.state(m, o.files)
	if err != nil {
		return err
	}
	bar := e.Bytes("seed", size)
	defer bar.Close()
	o.write.Progress = bar.Add
	if err := checkpoint.Write(ctx, o.out, s, o.write); err != nil {
		return err
	}
	fmt.Fprintf(e.Explain, "%s: %d tensors, %s of %s, seed %d, rng %s\n",
		o.out, len(s.Tensors), manifest.HumanBytes(size), o.dtype, o.seed, o.rng)
	return nil
}

// check compares dir with the weights asked for, and says what of them it has when it has all.
func (o *options) check(ctx context.Context, e *app.Env, m *manifest.Manifest, dir string) (whole string, err error) {
	s, size, err := o.state(m, 1)
	if err != nil {
		return "", err
	}
	jobs := o.write.Jobs
	if jobs == 0 {
		jobs = runtime.GOMAXPROCS(0)
	}
	bar := e.Bytes("verify", size)
	defer bar.Close()
	files, err := train.VerifySeed(ctx, dir, s, jobs, bar.Add)
	return fmt.Sprintf("%s in %s", manifest.Counted(len(s.Tensors), "tensor"), manifest.Counted(files, "file")), err
}
