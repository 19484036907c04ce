package main

import (
	"context"
	"fmt"

	"titan/libtitan/parallel"
	"titan/tools/internal/app"
)

// checkVerb runs the validation that every tool runs, and passes the manifest on.
func checkVerb() app.Verb {
	return app.Verb{
		Name: "check", Usage: "validate a manifest, and pass it on", Manifest: true,
		Example: "meshplan check -i job.json > /dev/null",
		Run: func(_ context.Context, e *app.Env) error {
			m, err := e.ReadManifest()
			if err != nil {
				return err
			}
			explain(e.Explain, m)
			if err := parallel.TellFloat8(m, e.Log, e.Explain); err != nil {
				return err
			}
			if err := parallel.Runnable(m); err != nil {
				e.Log.Info(fmt.Sprintf("the manifest is valid, for planning alone: %v", err))
			} else {
				e.Log.Info("the manifest is valid")
			}
			return e.WriteManifest(m)
		},
	}
}
