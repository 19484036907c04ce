package checkpoint

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"

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

// ListOptions say what [Reader.List] lists.
type ListOptions struct {
	ReadOptions
	Glob string // a pattern for names, as path.Match has it; "" lists all
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

// List gives the items to emit in order of name, each as soon as it is known.
func (r *Reader) List(ctx context.Context, o ListOptions, emit func(Listed) error) error {
	items, err := r.matching(o.Glob)
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
		return r.hash(ctx, it, block, o.Progress)
	}, func(it Item, sum string) error { return emit(listed(it, sum)) })
}

// matching lists the items whose names a pattern fits.
func (r *Reader) matching(glob string) ([]Item, error) {
	if glob == "" {
		return r.items, nil
	}
	var out []Item
	for _, it := range r.items {
		ok, err := path.Match(glob, it.FQN)
		if err != nil {
			return nil, exit.Usage.Errorf("glob %q: %w", glob, err)
		}
		if ok {
			out = append(out, it)
		}
	}
	return out, nil
}

// inOrder runs work on several items at once and hands the results to emit in the items' order.
func inOrder[T any](ctx context.Context, o ReadOptions, items []Item,
	work func(ctx context.Context, it Item, block int64) (T, error), emit func(Item, T) error) error {
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

// hash is an item's SHA-256, in hexadecimal.
func (r *Reader) hash(ctx context.Context, it Item, block int64, progress func(int64)) (string, error) {
	h := sha256.New()
	if it.Kind == KindBytes {
		pkl, err := r.objectPickle(it.FQN)
		if err != nil {
			return "", err
		}
		io.WriteString(h, pkl)
		return hex.EncodeToString(h.Sum(nil)), nil
	}
	err := r.Stream(it.FQN, block, func(b []byte) error {
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

// objectPickle is an object's data.pkl, which is the same wherever the object is stored.
func (r *Reader) objectPickle(fqn string) (string, error) {
	z, err := r.objectZip(fqn)
	if err != nil {
		return "", r.wrap(fqn, err)
	}
	pkl, err := z.read("data.pkl", maxPickle)
	return pkl, r.wrap(fqn, err)
}

// TensorBytes is the sum of the items' tensor data, for a progress bar.
func (r *Reader) TensorBytes() int64 {
	n := int64(0)
	for _, it := range r.items {
		if it.Kind == KindTensor {
			n += it.Bytes
		}
	}
	return n
}
