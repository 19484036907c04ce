package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"titan/libtitan/dtype"
	"titan/libtitan/pickle"
)

const fixtures = "../../testdata/dcp"

// expectation is an entry of expected.json, as PyTorch saw the value.
type expectation struct {
	Kind   string
	DType  string
	Shape  []int64
	SHA256 string
	Type   string
	Value  any
}

func expected(t testing.TB, dir string) map[string]expectation {
	b, err := os.ReadFile(filepath.Join(dir, "expected.json"))
	require.NoError(t, err)
	var doc struct{ Items map[string]expectation }
	require.NoError(t, json.Unmarshal(b, &doc))
	return doc.Items
}

func TestPyTorchFolders(t *testing.T) {
	dirs, err := filepath.Glob(fixtures + "/*")
	require.NoError(t, err)
	require.Len(t, dirs, 11)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			r, err := Open(filepath.Join(dir, "ckpt"))
			require.NoError(t, err)
			defer r.Close()
			want := expected(t, dir)
			require.Len(t, r.Items(), len(want))
			for _, it := range r.Items() {
				checkItem(t, r, it, want[it.FQN])
			}
		})
	}
}

func checkItem(t *testing.T, r *Reader, it Item, want expectation) {
	require.Equal(t, want.Kind, string(it.Kind), it.FQN)
	if it.Kind == KindBytes {
		v, err := r.Object(it.FQN)
		require.NoError(t, err)
		typ, value := asJSON(t, v)
		require.Equal(t, want.Type, typ, it.FQN)
		require.Equal(t, want.Value, value, it.FQN)
		return
	}
	require.Equal(t, want.DType, it.DType.String(), it.FQN)
	require.Equal(t, want.Shape, append([]int64{}, it.Shape...), it.FQN)
	for _, block := range []int64{1 << 20, 100, 1} {
		h := sha256.New()
		require.NoError(t, r.Stream(it.FQN, block, func(b []byte) error { h.Write(b); return nil }))
		require.Equal(t, want.SHA256, hex.EncodeToString(h.Sum(nil)), "%s in blocks of %d", it.FQN, block)
	}
}

// asJSON gives a value's Python type and the form that expected.json has of it.
func asJSON(t *testing.T, v any) (string, any) {
	list := func(items []any) []any {
		out := make([]any, len(items))
		for i, x := range items {
			_, out[i] = asJSON(t, x)
		}
		return out
	}
	switch v := v.(type) {
	case nil:
		return "NoneType", nil
	case bool:
		return "bool", v
	case int64:
		return "int", float64(v)
	case *big.Int:
		return "int", map[string]any{"int": v.String()}
	case float64:
		if math.IsInf(v, 0) {
			return "float", map[string]any{"float": strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(v, 'g', -1, 64), "+"))}
		}
		return "float", v
	case string:
		return "str", v
	case []byte:
		h := sha256.Sum256(v)
		return "bytes", map[string]any{"bytes_len": float64(len(v)), "sha256": hex.EncodeToString(h[:])}
	case Size:
		items := make([]any, len(v))
		for i, n := range v {
			items[i] = n
		}
		return "Size", map[string]any{"tuple": list(items)}
	case Device:
		return "device", map[string]any{"type": "torch.device", "repr": fmt.Sprintf("device(type='%s')", string(v))}
	case dtype.DType:
		return "dtype", map[string]any{"type": "torch.dtype", "repr": "torch." + v.String()}
	case pickle.Tuple:
		return "tuple", map[string]any{"tuple": list(v)}
	case []any:
		return "list", list(v)
	case *pickle.Set: // described by Python's repr
		repr := strings.NewReplacer("[", "{", "]", "}", " ", ", ").Replace(fmt.Sprint(v.Items))
		return "set", map[string]any{"type": "builtins.set", "repr": repr}
	case *pickle.Dict:
		pairs := make([]any, len(v.Pairs))
		for i, p := range v.Pairs {
			pairs[i] = list([]any{p.Key, p.Value})
		}
		return "dict", map[string]any{"dict": pairs}
	}
	t.Fatalf("unexpected Go type %T", v)
	return "", nil
}
