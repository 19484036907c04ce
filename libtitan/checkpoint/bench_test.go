package checkpoint

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

// rowCut cuts a [n, 1024] float32 tensor of zeros by rows over files.
func rowCut(fqn string, n int64, files int64) Tensor {
	t := Tensor{FQN: fqn, DType: dtype.Float32, Shape: []int64{n, 1024}}
	step := (n + files - 1) / files
	for f := int64(0); f*step < n; f++ {
		t.Chunks = append(t.Chunks, Chunk{[]int64{f * step, 0}, []int64{min(step, n-f*step), 1024}, int(f), func(dst []byte, _ int64) error { clear(dst); return nil }})
	}
	return t
}

func BenchmarkWrite(b *testing.B) {
	const rows = 1 << 16 // 256 MiB
	b.SetBytes(rows * 4096)
	for i := range b.N {
		s := State{Tensors: []Tensor{rowCut("w", rows, 4)}}
		require.NoError(b, Write(context.Background(), filepath.Join(b.TempDir(), fmt.Sprint(i)), s, WriteOptions{}))
	}
}

func BenchmarkStream(b *testing.B) {
	const rows = 1 << 16
	dir := filepath.Join(b.TempDir(), "ck")
	require.NoError(b, Write(context.Background(), dir, State{Tensors: []Tensor{rowCut("w", rows, 4)}}, WriteOptions{}))
	r, err := Open(dir)
	require.NoError(b, err)
	defer r.Close()
	b.SetBytes(rows * 4096)
	for b.Loop() {
		require.NoError(b, r.Stream("w", maxBlock, func([]byte) error { return nil }))
	}
}

// A tenth of what a 405B model has: 114 tensors in 1,024 chunks each.
func BenchmarkParseMetadata(b *testing.B) {
	var s State
	for i := range 114 {
		s.Tensors = append(s.Tensors, rowCut(fmt.Sprintf("layers.%d.feed_forward.w1.weight", i), 16384, 1024))
	}
	plan, err := newWritePlan(&s)
	require.NoError(b, err)
	var buf bytes.Buffer
	require.NoError(b, writeMetadata(&buf, plan.state, plan.files, nil))
	data := buf.String()
	b.SetBytes(int64(len(data)))
	b.ResetTimer()
	for b.Loop() {
		_, err := parseMetadata(data)
		require.NoError(b, err)
	}
}
