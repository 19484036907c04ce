package checkpoint

import (
	"context"
	"fmt"
	"os"
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

// bigMetadataDir is where BenchmarkOpen405B leaves its folder, so that ckpt-shard can be measured on it.
const bigMetadataDir = "TITAN_BIG_METADATA_DIR"

// writeBigMetadata makes dir a folder of a .metadata alone: tensors of rows by 16,384 float32, each cut over files.
func writeBigMetadata(b *testing.B, dir string, tensors, files int64) {
	const rows, columns = 53248, 16384 // a feed-forward weight of llama3-405b
	plan := &writePlan{state: &State{}, byRank: map[int]*outFile{}}
	for i := range tensors {
		t := Tensor{FQN: fmt.Sprintf("layers.%d.feed_forward.w%d.weight", i/9, i%9), DType: dtype.Float32, Shape: []int64{rows, columns}}
		step := rows / files
		for f := range files {
			t.Chunks = append(t.Chunks, Chunk{Offsets: []int64{f * step, 0}, Sizes: []int64{step, columns}, File: int(f)})
			item := &writeItem{fqn: t.FQN, chunk: &t.Chunks[f], index: int(f), zip: zipItem{dataBytes: step * columns * 4}}
			plan.place(item, int(f))
		}
		plan.state.Tensors = append(plan.state.Tensors, t)
	}
	for i := range plan.state.Tensors { // Chunks have moved while they grew
		for f, item := range plan.files {
			item.items[i].chunk = &plan.state.Tensors[i].Chunks[f]
		}
	}
	require.NoError(b, os.MkdirAll(dir, 0o777))
	require.NoError(b, plan.writeMetadata(filepath.Join(dir, ".metadata"), nil))
}

// The metadata of a 405B model over 1,024 ranks: a million chunks.
func BenchmarkOpen405B(b *testing.B) {
	dir := os.Getenv(bigMetadataDir)
	if dir == "" {
		dir = b.TempDir()
	}
	writeBigMetadata(b, dir, 1137, 1024)
	info, err := os.Stat(filepath.Join(dir, ".metadata"))
	require.NoError(b, err)
	b.SetBytes(info.Size())
	b.ReportAllocs()
	for b.Loop() {
		src, _, err := OpenListing(dir)
		require.NoError(b, err)
		require.Len(b, src.Items(), 1137)
	}
}
