package checkpoint

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
)

func TestCompressedFoldersReadBack(t *testing.T) {
	for _, name := range []string{"f1_single_rank_full", "f2_fsdp_shard0_x4", "f5_zstd_torch2.14"} {
		in, out := filepath.Join(fixtures, name, "ckpt"), filepath.Join(t.TempDir(), "z")
		require.NoError(t, Reshard(context.Background(), in, out, worldLayout(t, 2), MoveOptions{WriteOptions: WriteOptions{Compress: true}}))
		requireSame(t, openSource(t, in), openSource(t, out))
	}
}

func TestCompressionIsWorthIt(t *testing.T) {
	zeros := writeState(t, State{Tensors: []Tensor{filled("w", dtype.Float32, []int64{6 << 20}, make([]byte, 24<<20))}})
	out := filepath.Join(t.TempDir(), "z")
	require.NoError(t, Convert(context.Background(), zeros, out, ConvertOptions{To: DCP, MoveOptions: MoveOptions{WriteOptions: WriteOptions{Compress: true}}}))
	r := openTest(t, out)
	at := r.meta.tensors["w"].at[0]
	require.Less(t, at.length, int64(20<<10))
	require.Equal(t, []string{"stream.zstd/1"}, at.transforms)
	requireSame(t, openSource(t, zeros), r)
}
