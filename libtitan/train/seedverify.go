package train

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"titan/libtitan/checkpoint"
	"titan/libtitan/exit"
)

// VerifySeed reads the folder dir, however it is cut into files, and makes want, a state of one file, again, up to
// jobs tensors at a time. It compares them byte for byte: an error of exit code 4 says what differs, any other one
// that dir could not be read. Progress gets the bytes compared, from several goroutines. It returns how many files dir has.
func VerifySeed(ctx context.Context, dir string, want checkpoint.State, jobs int, progress func(int64)) (numFiles int, err error) {
	r, err := checkpoint.Open(dir)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	differ := make([]string, len(want.Tensors))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(max(1, jobs))
	for i := range want.Tensors {
		g.Go(func() (err error) {
			differ[i], err = difference(ctx, r, &want.Tensors[i], progress)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	differ = slices.DeleteFunc(differ, func(s string) bool { return s == "" })
	if unknown := unknownItem(r, want); len(differ) == 0 && unknown != "" {
		differ = []string{unknown}
	}
	if len(differ) > 0 {
		return 0, exit.No.Errorf("seed checkpoint %s: %d of %d tensors differ, the first: %s", dir, len(differ), len(want.Tensors), differ[0])
	}
	return checkpoint.NumFiles(r), nil
}

// difference says how r's tensor differs from want, "" if not at all.
func difference(ctx context.Context, r *checkpoint.Reader, want *checkpoint.Tensor, progress func(int64)) (string, error) {
	it, ok := r.Item(want.FQN)
	switch {
	case !ok || it.Kind != checkpoint.KindTensor:
		return want.FQN + " is absent", nil
	case it.DType != want.DType || !slices.Equal(it.Shape, want.Shape):
		return fmt.Sprintf("%s is %s %v, want %s %v", want.FQN, it.DType, it.Shape, want.DType, want.Shape), nil
	}
	var buf []byte
	var off int64
	where := ""
	size := int64(want.DType.Size())
	err := r.Stream(want.FQN, 4*piece, func(got []byte) error {
		if err := ctx.Err(); err != nil || where != "" {
			return err
		}
		buf = slices.Grow(buf[:0], len(got))[:len(got)]
		if err := want.Chunks[0].Fill(buf, off); err != nil {
			return err
		}
		if !bytes.Equal(got, buf) {
			i := 0
			for got[i] == buf[i] {
				i++
			}
			where = fmt.Sprintf("%s at element %d", want.FQN, (off+int64(i))/size)
		}
		off += int64(len(got))
		progress(int64(len(got)))
		return nil
	})
	return where, err
}

// unknownItem names something in r that want has not, "" if there is none.
func unknownItem(r *checkpoint.Reader, want checkpoint.State) string {
	known := map[string]bool{}
	for _, t := range want.Tensors {
		known[t.FQN] = true
	}
	for _, it := range r.Items() {
		if !known[it.FQN] {
			return it.FQN + " is no part of the model"
		}
	}
	return ""
}
