package checkpoint

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// rewriteDir is where TestPyTorchFoldersWrittenAgain leaves its folders, so that PyTorch can judge them.
const rewriteDir = "TITAN_REWRITE_DIR"

func TestPyTorchFoldersWrittenAgain(t *testing.T) {
	dirs, err := filepath.Glob(fixtures + "/*")
	require.NoError(t, err)
	out := os.Getenv(rewriteDir)
	if out == "" {
		out = t.TempDir()
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			r, err := Open(filepath.Join(dir, "ckpt"))
			require.NoError(t, err)
			defer r.Close()
			to := filepath.Join(out, filepath.Base(dir))
			require.NoError(t, Write(context.Background(), to, cutAgain(t, r, 3), WriteOptions{Replace: true}))
			again, err := Open(to)
			require.NoError(t, err)
			defer again.Close()
			want := expected(t, dir)
			require.Len(t, again.Items(), len(want))
			for _, it := range again.Items() {
				checkItem(t, again, it, want[it.FQN])
			}
		})
	}
}

// cutAgain is what r holds, cut by rows over so many files.
func cutAgain(t *testing.T, r *Reader, files int64) State {
	var s State
	for _, it := range r.Items() {
		if it.Kind == KindBytes {
			v, err := r.Object(it.FQN)
			require.NoError(t, err)
			s.Objects = append(s.Objects, Object{FQN: it.FQN, Path: it.Path, Value: v, File: len(s.Objects) % int(files)})
			continue
		}
		tensor := Tensor{FQN: it.FQN, Path: it.Path, DType: it.DType, Shape: it.Shape}
		data := make([]byte, it.Bytes)
		require.NoError(t, r.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, data))
		if it.Bytes == 0 || len(it.Shape) == 0 {
			tensor.Chunks = Whole(it.Shape, fillFrom(data, it.Shape, Box{make([]int64, len(it.Shape)), it.Shape}, int64(it.DType.Size())))
		} else {
			rows := (it.Shape[0] + files - 1) / files
			for f := int64(0); f*rows < it.Shape[0]; f++ {
				b := Box{make([]int64, len(it.Shape)), append([]int64{min(rows, it.Shape[0]-f*rows)}, it.Shape[1:]...)}
				b.Offsets[0] = f * rows
				tensor.Chunks = append(tensor.Chunks, Chunk{b.Offsets, b.Sizes, int(f), fillFrom(data, it.Shape, b, int64(it.DType.Size()))})
			}
		}
		s.Tensors = append(s.Tensors, tensor)
	}
	return s
}
