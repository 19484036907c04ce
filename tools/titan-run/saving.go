package main

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

// asyncModes are the words of --async, and the manifest's.
var asyncModes = map[string]string{"off": manifest.AsyncOff, "thread": manifest.AsyncThread, "pinned": manifest.AsyncPinned}

// loading are the flags of where a run starts.
func (f *flags) loading() []cli.Flag {
	c := &f.checkpoint
	return []cli.Flag{
		app.Folder(&c.Folder, "`DIR` of the step-N folders", "checkpoint-dir"),
		app.Count(&f.loadStep, "start from step `N` of the folder instead of the newest", "load-step"),
		app.Folder(&c.InitialLoadPath, "start from the weights in `DIR`, DCP or of Hugging Face's form, where the folder has no step", "initial-load-path"),
		app.Switch(&c.InitialLoadInHF, "refuse an --initial-load-path that is not of Hugging Face's form", "initial-load-in-hf"),
	}
}

// saving are the flags of what a run saves, and of what it takes from a step that it goes on from.
func (f *flags) saving() []cli.Flag {
	c := &f.checkpoint
	return []cli.Flag{
		app.Count(&c.Interval, "save every `N` steps, and at the end; 0: at the end alone", "checkpoint-interval"),
		app.Switch(&c.FirstStep, "save after step 1 too", "enable-first-step-checkpoint"),
		app.Choice(&f.async, []string{"off", "thread", "pinned"}, "save from a copy while training goes on (on the cpu, pinned is thread)", "async"),
		app.Count(&c.KeepLatestK, "delete steps but the newest K, at least 2; 0 keeps all", "keep-latest", "keep-latest-k"),
		app.Switch(&c.LoadOnly, "save nothing", "load-only"),
		app.Switch(&c.LastSaveModelOnly, "save the model alone after the last step", "last-save-model-only"),
		app.DType(&c.ExportDType, []string{"float32", "bfloat16", "float16"}, "type of a last save of the model alone", "export-dtype"),
		app.Switch(&c.LastSaveInHF, "write the last save, of the model alone, in Hugging Face's form", "last-save-in-hf"),
		app.Texts(&f.excluded, "begin `PART` of a loaded step afresh: optimizer, lr_scheduler, dataloader or train_state (repeatable)", "exclude-from-loading"),
	}
}

// applySaving puts what is given of both into the manifest's checkpoint section.
func (f *flags) applySaving(given func(flag string) bool, c *manifest.Checkpoint) error {
	from := &f.checkpoint
	for _, set := range []struct {
		flag string
		do   func()
	}{
		{"checkpoint-dir", func() { c.Folder = from.Folder }},
		{"load-step", func() { c.LoadStep = &f.loadStep }},
		{"initial-load-path", func() { c.InitialLoadPath = from.InitialLoadPath }},
		{"initial-load-in-hf", func() { c.InitialLoadInHF = from.InitialLoadInHF }},
		{"checkpoint-interval", func() { c.Interval = from.Interval }},
		{"enable-first-step-checkpoint", func() { c.FirstStep = from.FirstStep }},
		{"async", func() { c.AsyncMode = asyncModes[f.async] }},
		{"keep-latest", func() { c.KeepLatestK = from.KeepLatestK }},
		{"load-only", func() { c.LoadOnly = from.LoadOnly }},
		{"last-save-model-only", func() { c.LastSaveModelOnly = from.LastSaveModelOnly }},
		{"export-dtype", func() { c.ExportDType = from.ExportDType }},
		{"last-save-in-hf", func() { c.LastSaveInHF = from.LastSaveInHF }},
		{"exclude-from-loading", func() { c.ExcludeFromLoading = strings.Split(strings.Join(f.excluded, ","), ",") }},
	} {
		if given(set.flag) {
			set.do()
		}
	}
	if slices.Contains(c.ExcludeFromLoading, "model") {
		return exit.Usage.Errorf("--exclude-from-loading model: a run without its weights begins afresh: choose another --checkpoint-dir")
	}
	return nil
}
