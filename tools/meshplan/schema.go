package main

import (
	"context"

	"titan/libtitan/manifest"
	"titan/tools/internal/app"
)

// schemaVerb prints the JSON Schema of manifests.
func schemaVerb() app.Verb {
	return app.Verb{
		Name: "schema", Usage: "print the JSON Schema of a manifest",
		Run: func(_ context.Context, e *app.Env) error {
			text, err := manifest.Schema()
			if err != nil {
				return err
			}
			_, err = e.Out.Write(text)
			return err
		},
	}
}
