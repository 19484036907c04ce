package llama3

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"titan/libtitan/dtype"
)

func TestNamesGoBothWays(t *testing.T) {
	for _, p := range Presets()[:4] {
		for fqn := range Shapes(p.Config) {
			name, rows, ok := ToHuggingFace(fqn)
			require.True(t, ok, fqn)
			back, rows2, ok := FromHuggingFace(name)
			require.True(t, ok, name)
			require.Equal(t, fqn, back)
			require.Equal(t, rows, rows2)
		}
	}
	name, rows, _ := ToHuggingFace("layers.11.attention.wk.weight")
	require.Equal(t, "model.layers.11.self_attn.k_proj.weight", name)
	require.Equal(t, KVHeads, rows)
	for _, none := range []string{"layers.x.attention.wk.weight", "layers.01.attention.wk.weight", "layers.-1.ffn_norm.weight", "layers.1.attention.wk.bias", "", "layers..ffn_norm.weight"} {
		_, _, ok := ToHuggingFace(none)
		require.False(t, ok, none)
	}
	require.True(t, Derived("model.layers.0.self_attn.rotary_emb.inv_freq"))
	require.True(t, Derived("freqs_cis"))
	require.False(t, Derived("layers.0.attention.wq.weight"))
}

// Public reports: the key heads were reordered by the number of query heads, and the text was unreadable.
func TestRowsOfAHead(t *testing.T) {
	var rows []int64
	for i := range int64(8) {
		rows = append(rows, OurRow(i, 4))
	}
	require.Equal(t, []int64{0, 2, 1, 3, 4, 6, 5, 7}, rows)
	rapid.Check(t, func(t *rapid.T) {
		headDim := 2 * rapid.Int64Range(1, 64).Draw(t, "half")
		i := rapid.Int64Range(0, 1<<20).Draw(t, "row")
		require.Equal(t, i, TheirRow(OurRow(i, headDim), headDim))
		require.Equal(t, i, OurRow(TheirRow(i, headDim), headDim))
	})
}

func TestConfigGoesBothWays(t *testing.T) {
	for _, p := range Presets() {
		var b bytes.Buffer
		require.NoError(t, WriteHuggingFace(&b, p.Config, dtype.BFloat16))
		back, err := ReadHuggingFace(&b)
		require.NoError(t, err)
		require.Equal(t, p.Config, back)
	}
	c := Presets()[0].Config
	c.RopeScaling = nil
	var b bytes.Buffer
	require.NoError(t, WriteHuggingFace(&b, c, dtype.Float32))
	back, err := ReadHuggingFace(&b)
	require.NoError(t, err)
	require.Equal(t, c, back)
}

func TestInfer(t *testing.T) {
	for _, p := range Presets() {
		c := p.Config
		c.NumLayers = 3
		got, name, ok := Infer(Shapes(c))
		require.True(t, ok, p.Name)
		require.Equal(t, p.Name, name)
		require.Equal(t, c, got)
	}
	odd := Presets()[0].Config
	odd.FFNHidden = 77
	_, _, ok := Infer(Shapes(odd))
	require.False(t, ok)
}
