package main

import (
	"context"
	"fmt"

	"github.com/urfave/cli/v2"

	"titan/libtitan/manifest"
	"titan/libtitan/model/llama3"
	"titan/tools/internal/app"
)

// modelsVerb lists the presets.
func modelsVerb() app.Verb {
	asJSON := false
	return app.Verb{
		Name: "models", Usage: "list the models known by name",
		Flags: []cli.Flag{app.Switch(&asJSON, "print a JSON list", "json")},
		Run: func(_ context.Context, e *app.Env) error {
			if asJSON {
				return modelsJSON(e)
			}
			t := app.Table(e.Out)
			fmt.Fprintln(t, "NAME\tDIM\tLAYERS\tHEADS/KV\tFFN\tVOCAB\tTIED\tPARAMETERS\tSEQ_LEN\tFLOPS A TOKEN")
			for _, p := range llama3.Presets() {
				c := p.Config
				fmt.Fprintf(t, "%s\t%d\t%d\t%d/%d\t%d\t%d\t%v\t%s\t%d\t%s\n", p.Name, c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.FFNHidden, c.VocabSize, c.Tied,
					app.Grouped(c.NumParams()), p.SeqLen, app.Grouped(c.FlopsPerToken(p.SeqLen)))
			}
			return t.Flush()
		},
	}
}

func modelsJSON(e *app.Env) error {
	var models []manifest.Model
	for _, p := range llama3.Presets() {
		models = append(models, manifest.Model{Family: "llama3", Flavor: p.Name, Config: p.Config, NumParams: p.Config.NumParams(), FlopsPerToken: p.Config.FlopsPerToken(p.SeqLen)})
	}
	return app.WriteJSON(e.Out, models)
}
