package main

import (
	"context"
	"strconv"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
	"titan/tools/internal/app"
)

func extractVerb() app.Verb {
	var o checkpoint.MoveOptions
	var part checkpoint.Part
	var manifestPath, stage, only string
	return app.Verb{
		Name: "extract", Args: "IN OUT",
		Usage:   "write part of a checkpoint: names that a pattern fits, a pipeline stage, the model without its optimizer",
		Example: "ckpt-shard extract small/step-10 model --only model",
		Flags: append(moveFlags(&o),
			app.Text(&part.Glob, "take the names that the `PATTERN` fits", "fqn", "glob"),
			app.Text(&stage, "take the modules of stage `K` of the manifest", "stage"),
			app.Text(&manifestPath, "the manifest `FILE` that has the stages", "manifest", "m"),
			app.Named(&only, []string{"model"}, "take the `PART`: model", "only")),
		Run: func(ctx context.Context, e *app.Env) error {
			if part.Glob+stage+only == "" {
				return exit.Usage.Errorf("give --fqn, --stage or --only")
			}
			if only != "" && only != "model" {
				return exit.Usage.Errorf("--only %s: only model is known", only)
			}
			part.ModelOnly = only != ""
			if stage != "" {
				var err error
				if part.Modules, err = stageModules(e, manifestPath, stage); err != nil {
					return err
				}
			}
			return moving(e, "extract", &o, func() error {
				return checkpoint.Extract(ctx, e.Args[0], e.Args[1], part, o)
			})
		},
	}
}

// stageModules lists the modules of a manifest's stage.
func stageModules(e *app.Env, path, stage string) ([]string, error) {
	if path == "" {
		return nil, exit.Usage.Errorf("--stage needs the --manifest that has the stages")
	}
	m, err := readManifest(e, path)
	if err != nil {
		return nil, err
	}
	k, err := strconv.Atoi(stage)
	if err != nil {
		return nil, exit.Usage.Errorf("--stage %s: not a stage's number", stage)
	}
	if m.Pipeline == nil || k < 0 || k >= len(m.Pipeline.Stages) {
		n := 0
		if m.Pipeline != nil {
			n = len(m.Pipeline.Stages)
		}
		return nil, exit.Input.Errorf("%s: no stage %d: pipeline.stages has %d (pp-split makes them)", path, k, n)
	}
	return m.Pipeline.Stages[k].FQNs, nil
}
