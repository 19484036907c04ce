package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// checkSource holds what a source reads to an expected.json.
func checkSource(t *testing.T, src Source, want map[string]expectation) {
	t.Helper()
	require.Len(t, src.Items(), len(want))
	for _, it := range src.Items() {
		w := want[it.FQN]
		require.Equal(t, w.Kind, string(it.Kind), it.FQN)
		if it.Kind == KindBytes {
			v, err := src.Object(it.FQN)
			require.NoError(t, err)
			typ, value := asJSON(t, v)
			require.Equal(t, w.Type, typ, it.FQN)
			require.Equal(t, w.Value, value, it.FQN)
			continue
		}
		require.Equal(t, w.DType, it.DType.String(), it.FQN)
		require.Equal(t, w.Shape, append([]int64{}, it.Shape...), it.FQN)
		data := make([]byte, it.Bytes)
		require.NoError(t, src.ReadRegion(it.FQN, make([]int64, len(it.Shape)), it.Shape, data))
		sum := sha256.Sum256(data)
		require.Equal(t, w.SHA256, hex.EncodeToString(sum[:]), it.FQN)
	}
}

const hfFixtures = "../../testdata/hf"

func TestHuggingFaceFolders(t *testing.T) {
	dirs, err := filepath.Glob(hfFixtures + "/*")
	require.NoError(t, err)
	require.Len(t, dirs, 3)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			src, err := OpenSource(filepath.Join(dir, "ckpt"))
			require.NoError(t, err)
			defer src.Close()
			checkSource(t, src, expected(t, dir))
		})
	}
}
