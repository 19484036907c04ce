package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"titan/libtitan/checkpoint"
	"titan/tools/internal/app"
)

func lsVerb() app.Verb {
	var o checkpoint.ListOptions
	var asJSON bool
	return app.Verb{
		Name: "ls", Args: "DIR|FILE",
		Usage:   "list the items: name, dtype or kind, shape, chunks, bytes, hash",
		Example: "ckpt-shard ls small/step-10 --glob 'layers.0.*' --hash",
		Flags: append(limits(&o.ReadOptions),
			app.Switch(&asJSON, "print one JSON object, {\"items\": [...]}", "json"),
			app.Switch(&o.Hash, "add the SHA-256 of each whole tensor, the same in every layout", "hash"),
			app.Text(&o.Glob, "list the names that the `PATTERN` fits: * any run, ? one character", "glob")),
		Run: func(ctx context.Context, e *app.Env) error { return list(ctx, e, o, asJSON) },
	}
}

func list(ctx context.Context, e *app.Env, o checkpoint.ListOptions, asJSON bool) error {
	src, err := openListing(e, o.Hash)
	if err != nil {
		return err
	}
	defer src.Close()
	if o.Hash {
		defer progress(e, &o.ReadOptions, "ls", checkpoint.TensorBytes(src))()
	}
	w := bufio.NewWriter(e.Out)
	if asJSON {
		err = listJSON(ctx, src, o, w)
	} else {
		err = checkpoint.List(ctx, src, o, func(l checkpoint.Listed) error { return listLine(w, l) })
	}
	if err != nil {
		return err
	}
	return w.Flush()
}

// openListing opens what is to be listed; without hashes the metadata suffice.
func openListing(e *app.Env, hash bool) (checkpoint.Source, error) {
	if hash {
		return checkpoint.OpenSource(e.Args[0])
	}
	src, note, err := checkpoint.OpenListing(e.Args[0])
	if note != "" {
		e.Log.Warn(note)
	}
	return src, err
}

// listJSON prints the items as they come, an item a line.
func listJSON(ctx context.Context, src checkpoint.Source, o checkpoint.ListOptions, w io.Writer) error {
	sep := "{\"items\": ["
	err := checkpoint.List(ctx, src, o, func(l checkpoint.Listed) error {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(w, "%s\n  %s", sep, b)
		sep = ","
		return err
	})
	if err != nil {
		return err
	}
	if sep != "," {
		_, err = fmt.Fprintln(w, "{\"items\": []}")
	} else {
		_, err = fmt.Fprintln(w, "\n]}")
	}
	return err
}

// listLine prints an item with tabs between the columns.
func listLine(w io.Writer, l checkpoint.Listed) error {
	columns := []string{checkpoint.LineName(l.FQN), string(l.Kind), "-", "-", fmt.Sprint(l.Bytes)}
	if l.Kind == checkpoint.KindTensor {
		columns[1], columns[2] = l.DType, strings.ReplaceAll(fmt.Sprint(l.Shape), " ", ",")
		columns[3] = fmt.Sprint(len(l.Chunks))
	}
	if l.SHA256 != "" {
		columns = append(columns, l.SHA256)
	}
	_, err := fmt.Fprintln(w, strings.Join(columns, "\t"))
	return err
}
