package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/exit"
)

// ReadOptions bound what a verb that reads takes; the answer does not depend on them.
type ReadOptions struct {
	MaxMemory int64             // for buffers, in bytes; 0 means 256 MiB
	Jobs      int               // tensors in hand at once; 0 means one a CPU
	Progress  func(bytes int64) // so many more bytes of tensors are read; called from several goroutines
}

func (o *ReadOptions) limits() (jobs int, block int64) {
	w := WriteOptions{MaxMemory: o.MaxMemory, Jobs: o.Jobs}
	return w.jobs(), w.blockSize()
}

// ListOptions say what [List] lists.
type ListOptions struct {
	ReadOptions
	Glob string // a pattern for names, as globFits has it; "" lists all
	Hash bool   // SHA-256 of each item
}

// Listed is an item as ls prints it. An object has no dtype, shape and chunks.
type Listed struct {
	FQN    string  `json:"fqn"`
	Kind   Kind    `json:"kind"`
	DType  string  `json:"dtype,omitempty"`
	Shape  []int64 `json:"shape,omitzero"`
	Chunks []Box   `json:"chunks,omitzero"`
	Bytes  int64   `json:"bytes"`            // of the tensor's elements, or of the object's stored form
	SHA256 string  `json:"sha256,omitempty"` // of the full row-major little-endian tensor, or of the object's pickle
}

// OpenListing opens a checkpoint for [List] without hashes, which reads no tensor. It also takes a .metadata file, and
// a DCP folder of which nothing but that is there; note says so.
func OpenListing(path string) (src Source, note string, err error) {
	if info, err := os.Stat(path); err == nil && !info.IsDir() && strings.HasSuffix(filepath.Base(path), ".metadata") {
		md, err := readMetadataFile(path)
		if err != nil {
			return nil, "", err
		}
		return newReader(filepath.Dir(path), md), "", nil
	}
	if !isDCP(path) {
		src, err = OpenSource(path)
		return src, "", err
	}
	r, err := open(path)
	if err != nil {
		return nil, "", err
	}
	if n := r.absentFiles(); n > 0 {
		return r, fmt.Sprintf("%s: none of the %d data files is there: this is what .metadata says", path, n), nil
	}
	if faults := r.faults(); len(faults) > 0 {
		return nil, "", errors.Join(exit.Input.Errorf("checkpoint %s: %w", path, faults[0]), r.Close())
	}
	return r, "", nil
}

// absentFiles is the number of data files, if all are missing.
func (r *Reader) absentFiles() (n int) {
	names := map[string]bool{}
	for fqn := range r.meta.objects {
		names[r.meta.objects[fqn].path] = true
	}
	for _, t := range r.meta.tensors {
		for _, at := range t.at {
			names[at.path] = true
		}
	}
	for name := range names {
		if checkName(name) != nil {
			return 0
		}
		if _, err := os.Stat(filepath.Join(r.folder.dir, name)); !errors.Is(err, fs.ErrNotExist) {
			return 0
		}
	}
	return len(names)
}

// List gives the items to emit in order of name, each as soon as it is known.
func List(ctx context.Context, src Source, o ListOptions, emit func(Listed) error) error {
	items, err := matching(src, o.Glob)
	if err != nil {
		return err
	}
	if !o.Hash {
		for _, it := range items {
			if err := emit(listed(it, "")); err != nil {
				return err
			}
		}
		return nil
	}
	return inOrder(ctx, o.ReadOptions, items, func(ctx context.Context, it Item, block int64) (string, error) {
		return hashItem(ctx, src, it, block, o.Progress)
	}, func(it Item, sum string) error { return emit(listed(it, sum)) })
}

// matching lists the items whose names a pattern fits. That none does is an error: it is mostly a slip.
func matching(src Source, glob string) ([]Item, error) {
	if glob == "" {
		return src.Items(), nil
	}
	var out []Item
	var names []string
	for _, it := range src.Items() {
		names = append(names, it.FQN)
		ok, err := globFits(glob, it.FQN)
		if err != nil {
			return nil, exit.Usage.Errorf("glob %q: %w", glob, err)
		}
		if ok {
			out = append(out, it)
		}
	}
	if len(out) == 0 {
		return nil, exit.Input.Errorf("checkpoint %s: no name fits the pattern %q: there are %s", src.Name(), glob, first(3, names))
	}
	return out, nil
}

// slashes makes a slash in a name a character like any other, to path.Match.
var slashes = strings.NewReplacer("/", "\x00")

// globFits reports whether a pattern fits a name: * any run, ? one character, [a-z] one of those.
func globFits(glob, name string) (bool, error) {
	return path.Match(slashes.Replace(glob), slashes.Replace(name))
}

// inOrder runs work on several items at once and hands the results to emit in the items' order.
func inOrder[E, T any](ctx context.Context, o ReadOptions, items []E,
	work func(ctx context.Context, it E, block int64) (T, error), emit func(E, T) error) error {
	jobs, block := o.limits()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(jobs + 1)
	queue := make(chan chan T, jobs) // results to come, in order; its room bounds how far work runs ahead
	g.Go(func() error {
		for _, it := range items {
			v, err := receive(ctx, queue)
			if err != nil {
				return err
			}
			if err := emit(it, v); err != nil {
				return err
			}
		}
		return nil
	})
	for _, it := range items {
		result := make(chan T, 1)
		select {
		case queue <- result:
		case <-ctx.Done():
			return g.Wait()
		}
		g.Go(func() error {
			v, err := work(ctx, it, block)
			if err == nil {
				result <- v
			}
			return err
		})
	}
	return g.Wait()
}

// receive waits for the next result.
func receive[T any](ctx context.Context, queue <-chan chan T) (v T, err error) {
	select {
	case result := <-queue:
		select {
		case v = <-result:
			return v, nil
		case <-ctx.Done():
		}
	case <-ctx.Done():
	}
	return v, ctx.Err()
}

func listed(it Item, sum string) Listed {
	l := Listed{FQN: it.FQN, Kind: it.Kind, Bytes: it.Bytes, SHA256: sum}
	if it.Kind == KindTensor {
		l.DType, l.Shape, l.Chunks = it.DType.String(), it.Shape, it.Chunks
	}
	return l
}

// hashItem is an item's SHA-256, in hexadecimal.
func hashItem(ctx context.Context, src Source, it Item, block int64, progress func(int64)) (string, error) {
	h := sha256.New()
	if it.Kind == KindBytes {
		pkl, err := dataPickle(src, it.FQN)
		if err != nil {
			return "", err
		}
		io.WriteString(h, pkl)
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	err := stream(src, it, block, func(b []byte) error {
		h.Write(b)
		report(progress, len(b))
		return ctx.Err()
	})
	return hex.EncodeToString(h.Sum(nil)), err
}

func report(progress func(int64), n int) {
	if progress != nil {
		progress(int64(n))
	}
}

// dataPickle is an object's data.pkl, which is the same wherever the object is stored.
func dataPickle(src Source, fqn string) (string, error) {
	b, err := src.ObjectZip(fqn)
	if err != nil {
		return "", err
	}
	z, err := openZip(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		return "", exit.Input.Errorf("checkpoint %s: %s: %w", src.Name(), fqn, err)
	}
	return z.read("data.pkl", maxPickle)
}

// TensorBytes is the sum of the items' tensor data, for a progress bar.
func TensorBytes(src Source) int64 {
	n := int64(0)
	for _, it := range src.Items() {
		if it.Kind == KindTensor {
			n += it.Bytes
		}
	}
	return n
}

// NumFiles is how many files the items lie in.
func NumFiles(src Source) int {
	files := map[int]bool{}
	for _, it := range src.Items() {
		if it.Files == nil {
			files[0] = true
		}
		for _, f := range it.Files {
			files[f] = true
		}
	}
	return len(files)
}

// ItemBytes is the size of one item, 0 if there is none of the name.
func ItemBytes(src Source, fqn string) int64 {
	it, _ := findItem(src, fqn)
	return it.Bytes
}
