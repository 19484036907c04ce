package llama3

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The counts are torchtitan's own, read off its models.
func TestPresetCounts(t *testing.T) {
	for _, c := range []struct {
		name                            string
		ffn                             int
		params, flops2048, flops8192    int64
		dim, layers, heads, kv, headDim int
	}{
		{"debugmodel", 768, 6_163_712, 71_585_280, 184_831_488, 256, 6, 16, 16, 16},
		{"llama3-1b", 8192, 1_235_814_400, 8_220_192_768, 10_636_111_872, 2048, 16, 32, 8, 64},
		{"llama3-3b", 8192, 3_212_749_824, 21_390_428_160, 27_732_215_808, 3072, 28, 24, 8, 128},
		{"llama3-8b", 14336, 8_030_261_248, 48_250_773_504, 57_914_449_920, 4096, 32, 32, 8, 128},
		{"llama3-70b", 28672, 70_553_706_496, 433_124_327_424, 481_442_709_504, 8192, 80, 64, 8, 128},
		{"llama3-405b", 53248, 405_853_388_800, 2_473_246_556_160, 2_625_449_459_712, 16384, 126, 128, 8, 128},
	} {
		p, err := Find(c.name)
		require.NoError(t, err)
		require.Equal(t, c.name, p.Name)
		m := p.Config
		require.Equal(t, []int{c.dim, c.layers, c.heads, c.kv, c.headDim, c.ffn}, []int{m.Dim, m.NumLayers, m.NumHeads, m.NumKVHeads, m.HeadDim, m.FFNHidden}, c.name)
		require.Equal(t, c.params, m.NumParams(), c.name)
		require.Equal(t, c.flops2048, m.FlopsPerToken(2048), c.name)
		require.Equal(t, c.flops8192, m.FlopsPerToken(8192), c.name)
	}
}

func TestUntied(t *testing.T) {
	for name, want := range map[string]int64{"1b": 1_498_482_688, "3b": 3_606_752_256} {
		p, err := Find(name)
		require.NoError(t, err)
		flops := p.Config.FlopsPerToken(8192)
		p.Config.Tied = false
		require.Equal(t, want, p.Config.NumParams())
		require.Equal(t, flops, p.Config.FlopsPerToken(8192), "a tied head multiplies all the same")
	}
}

// The count is that of the parameters that the model is made of.
func TestCountsAreThoseOfTheModel(t *testing.T) {
	for _, name := range []string{"tiny", "tiny-259", "debugmodel", "1b"} {
		p, err := Find(name)
		require.NoError(t, err)
		var n int64
		for _, param := range New(p.Config).Params() {
			size := int64(1)
			for _, d := range param.Shape {
				size *= int64(d)
			}
			n += size
		}
		require.Equal(t, n, p.Config.NumParams(), name)
	}
}

func TestFind(t *testing.T) {
	for _, name := range []string{"llama3-8b", "LLAMA3-8B", "8B"} {
		p, err := Find(name)
		require.NoError(t, err)
		require.Equal(t, "llama3-8b", p.Name)
	}
	p, err := Find("llama3-debugmodel")
	require.NoError(t, err)
	require.Equal(t, "debugmodel", p.Name)
	_, err = Find("lama3-8b")
	require.EqualError(t, err, `unknown model "lama3-8b": did you mean llama3-8b? (meshplan models lists all)`)
	_, err = Find("gpt2")
	require.ErrorContains(t, err, `unknown model "gpt2": not among tiny, tiny-259, debugmodel, llama3-1b`)
}

const llama31 = `{"architectures": ["LlamaForCausalLM"], "attention_bias": false, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
 "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
 "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
 "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "vocab_size": 128256}`

func TestReadHuggingFace(t *testing.T) {
	p, err := Find("8b")
	require.NoError(t, err)
	c, err := ReadHuggingFace(strings.NewReader(llama31))
	require.NoError(t, err)
	require.Equal(t, p.Config, c)

	for _, c := range []struct {
		name, from, to string
		check          func(c Config)
	}{
		{"plain rope", `"rope_scaling": {`, `"rope_scaling": null, "x": {`, func(c Config) { require.Nil(t, c.RopeScaling) }},
		{"transformers 5", `"rope_scaling": {`, `"rope_parameters": {"rope_theta": 7e5, `, func(c Config) {
			require.Equal(t, 7e5, c.RopeTheta)
			require.Equal(t, 8.0, c.RopeScaling.Factor)
		}},
		{"head_dim", `"model_type"`, `"head_dim": 64, "model_type"`, func(c Config) { require.Equal(t, 64, c.HeadDim) }},
		{"no kv heads", `"num_key_value_heads": 8`, `"num_key_value_heads": null`, func(c Config) { require.Equal(t, 32, c.NumKVHeads) }},
		{"tied", `"tie_word_embeddings": false`, `"tie_word_embeddings": true`, func(c Config) { require.True(t, c.Tied) }},
	} {
		got, err := ReadHuggingFace(strings.NewReader(strings.Replace(llama31, c.from, c.to, 1)))
		require.NoError(t, err, c.name)
		c.check(got)
	}
}

func TestReadHuggingFaceRefuses(t *testing.T) {
	for _, c := range []struct{ name, from, to, want string }{
		{"other architecture", "LlamaForCausalLM", "MistralForCausalLM", `architectures: ["MistralForCausalLM"]: only LlamaForCausalLM is known`},
		{"bias", `"attention_bias": false`, `"attention_bias": true`, "attention_bias, mlp_bias: linears with a bias are not computed"},
		{"activation", `"silu"`, `"gelu"`, `hidden_act: "gelu": only silu is computed`},
		{"rope", `"rope_type": "llama3"`, `"rope_type": "yarn"`, `rope_scaling: type "yarn": only llama3 is known`},
		{"old rope", `"rope_type": "llama3"`, `"type": "linear"`, `rope_scaling: type "linear": only llama3 is known`},
		{"type", `"hidden_size": 4096`, `"hidden_size": "4096"`, "hidden_size: want int, got string"},
		{"fraction", `"hidden_size": 4096`, `"hidden_size": 40.5`, "hidden_size: want int, got number 40.5"},
		{"zero heads", `"num_attention_heads": 32`, `"num_attention_heads": 0`, "num_attention_heads: 0: must be given and at least 1"},
		{"missing", `"vocab_size"`, `"vocab_sizes"`, "vocab_size: 0: must be given and at least 1"},
		{"not JSON", `{"arch`, `"arch`, "not a config.json: invalid character ':' after top-level value"},
		{"large", `{`, strings.Repeat(" ", maxConfigBytes) + `{`, "larger than 1 MiB"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ReadHuggingFace(strings.NewReader(strings.Replace(llama31, c.from, c.to, 1)))
			require.EqualError(t, err, c.want)
		})
	}
}

func FuzzReadHuggingFace(f *testing.F) {
	f.Add(llama31)
	f.Add(`{"architectures": ["LlamaForCausalLM"]}`)
	f.Fuzz(func(t *testing.T, in string) {
		if _, err := ReadHuggingFace(strings.NewReader(in)); err != nil {
			require.NotContains(t, err.Error(), "\n")
		}
	})
}
