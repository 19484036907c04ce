package llama3

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"titan/libtitan/dtype"
)

// Heads says by which heads a weight's rows lie in another order in Hugging Face's models.
type Heads int

// The orders of rows.
const (
	AsIs       Heads = iota // the same on both sides
	QueryHeads              // within each query head
	KVHeads                 // within each key-value head
)

// hfNames pairs our names with those of transformers' LlamaForCausalLM. # is a layer's number.
var hfNames = []struct {
	ours, theirs string
	rows         Heads
}{
	{"tok_embeddings.weight", "model.embed_tokens.weight", AsIs},
	{"layers.#.attention.wq.weight", "model.layers.#.self_attn.q_proj.weight", QueryHeads},
	{"layers.#.attention.wk.weight", "model.layers.#.self_attn.k_proj.weight", KVHeads},
	{"layers.#.attention.wv.weight", "model.layers.#.self_attn.v_proj.weight", AsIs},
	{"layers.#.attention.wo.weight", "model.layers.#.self_attn.o_proj.weight", AsIs},
	{"layers.#.feed_forward.w1.weight", "model.layers.#.mlp.gate_proj.weight", AsIs},
	{"layers.#.feed_forward.w2.weight", "model.layers.#.mlp.down_proj.weight", AsIs},
	{"layers.#.feed_forward.w3.weight", "model.layers.#.mlp.up_proj.weight", AsIs},
	{"layers.#.attention_norm.weight", "model.layers.#.input_layernorm.weight", AsIs},
	{"layers.#.ffn_norm.weight", "model.layers.#.post_attention_layernorm.weight", AsIs},
	{"norm.weight", "model.norm.weight", AsIs},
	{"lm_head.weight", "lm_head.weight", AsIs},
}

// ToHuggingFace is Hugging Face's name of one of our parameters.
func ToHuggingFace(fqn string) (name string, rows Heads, ok bool) {
	for _, n := range hfNames {
		if layer, ok := match(n.ours, fqn); ok {
			return strings.Replace(n.theirs, "#", layer, 1), n.rows, true
		}
	}
	return "", AsIs, false
}

// FromHuggingFace is our name of one of theirs.
func FromHuggingFace(name string) (fqn string, rows Heads, ok bool) {
	for _, n := range hfNames {
		if layer, ok := match(n.theirs, name); ok {
			return strings.Replace(n.ours, "#", layer, 1), n.rows, true
		}
	}
	return "", AsIs, false
}

// Derived reports whether a name, ours or theirs, is of a rotary table, which is computed and not stored.
func Derived(name string) bool {
	return name == "freqs_cis" || strings.HasSuffix(name, ".freqs_cis") || strings.HasSuffix(name, ".rotary_emb.inv_freq")
}

// match finds the layer's number where name is pattern with a number for #.
func match(pattern, name string) (layer string, ok bool) {
	before, after, numbered := strings.Cut(pattern, "#")
	if !numbered {
		return "", name == pattern
	}
	rest, ok1 := strings.CutPrefix(name, before)
	layer, ok2 := strings.CutSuffix(rest, after)
	n, err := strconv.Atoi(layer)
	return layer, ok1 && ok2 && err == nil && n >= 0 && strconv.Itoa(n) == layer
}

// OurRow is the row of our weight that is Hugging Face's row i. Within a head of headDim rows we keep the two channels
// that turn together side by side; they keep the first of each pair in the first half and the second in the second.
func OurRow(i, headDim int64) int64 {
	head, j := i/headDim*headDim, i%headDim
	return head + j%(headDim/2)*2 + j/(headDim/2)
}

// TheirRow is the inverse of OurRow.
func TheirRow(i, headDim int64) int64 {
	head, j := i/headDim*headDim, i%headDim
	return head + j%2*(headDim/2) + j/2
}

// Shapes lists every parameter's shape by name; a tied head has none of its own.
func Shapes(c Config) map[string][]int64 {
	out := map[string][]int64{}
	for _, p := range New(c).Params() {
		out[p.FQN] = p.Shape
	}
	return out
}

// WriteHuggingFace writes c as the config.json of a LlamaForCausalLM whose weights are of type dt.
func WriteHuggingFace(w io.Writer, c Config, dt dtype.DType) error {
	rope := any(nil)
	if s := c.RopeScaling; s != nil {
		rope = map[string]any{
			"rope_type": "llama3", "factor": s.Factor, "low_freq_factor": s.LowFreqFactor,
			"high_freq_factor": s.HighFreqFactor, "original_max_position_embeddings": s.OriginalMaxLen,
		}
	}
	b, err := json.MarshalIndent(map[string]any{
		"architectures": []string{"LlamaForCausalLM"}, "model_type": "llama", "torch_dtype": dt.String(),
		"hidden_size": c.Dim, "num_hidden_layers": c.NumLayers, "num_attention_heads": c.NumHeads,
		"num_key_value_heads": c.NumKVHeads, "head_dim": c.HeadDim, "intermediate_size": c.FFNHidden,
		"vocab_size": c.VocabSize, "max_position_embeddings": c.MaxSeqLen, "rms_norm_eps": c.NormEps,
		"rope_theta": c.RopeTheta, "rope_scaling": rope, "tie_word_embeddings": c.Tied,
		"attention_bias": false, "mlp_bias": false, "hidden_act": "silu", "use_cache": true, "initializer_range": 0.02,
	}, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", b)
	return err
}

// Infer finds the one preset, but for its number of layers, whose parameters have the given shapes. A checkpoint does
// not say its number of heads.
func Infer(shapes map[string][]int64) (Config, string, bool) {
	layers := 0
	for fqn := range shapes {
		if _, ok := match("layers.#.attention.wq.weight", fqn); ok {
			layers++
		}
	}
	for _, p := range Presets() {
		c := p.Config
		c.NumLayers = layers
		if _, head := shapes["lm_head.weight"]; !head == c.Tied && fits(Shapes(c), shapes) {
			return c, p.Name, true
		}
	}
	return Config{}, "", false
}

// fits reports whether two models have the same parameters.
func fits(want, got map[string][]int64) bool {
	return maps.EqualFunc(want, got, slices.Equal[[]int64])
}
