package llama3

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"strings"

	"titan/libtitan/exit"
	"titan/libtitan/manifest"
)

// Preset is a known model and how it is usually trained.
type Preset struct {
	Name           string // as typed: llama3-8b
	Config         Config
	FFN            FFNRule // what FFNHidden follows from; zero: it is given
	SeqLen         int
	LocalBatchSize int
	Steps          int
	LR             float64
	WarmupSteps    int
	DecayRatio     float64 // 0: decay over all that warm-up leaves
}

// Presets lists the models of torchtitan's llama3, and tiny ones for tests. 1B and 3B have a tied head; all
// stretch their rotary frequencies by 8, as torchtitan does.
func Presets() []Preset {
	all := []Preset{
		{"tiny", dims(64, 4, 4, 2, 128, 256), FFNRule{}, 64, 8, 20, 1e-3, 2, 0},
		{"tiny-259", dims(64, 4, 4, 2, 128, 259), FFNRule{}, 64, 8, 20, 1e-3, 2, 0},
		{"debugmodel", dims(256, 6, 16, 16, 0, 2048), FFNRule{1, 256}, 2048, 8, 10, 8e-4, 2, 0.8},
		{"llama3-1b", tied(dims(2048, 16, 32, 8, 0, 128256)), FFNRule{1.5, 1024}, 8192, 2, 1000, 3e-4, 200, 0},
		{"llama3-3b", tied(dims(3072, 28, 24, 8, 0, 128256)), FFNRule{1, 1024}, 8192, 1, 1000, 3e-4, 200, 0},
		{"llama3-8b", dims(4096, 32, 32, 8, 0, 128256), FFNRule{1.3, 1024}, 8192, 1, 1000, 3e-4, 200, 0},
		{"llama3-70b", dims(8192, 80, 64, 8, 0, 128256), FFNRule{1.3, 4096}, 8192, 8, 1000, 1.5e-4, 200, 0},
		{"llama3-405b", dims(16384, 126, 128, 8, 0, 128256), FFNRule{1.2, 4096}, 8192, 2, 3000, 8e-5, 600, 0},
	}
	for i := range all {
		if p := &all[i]; p.FFN != (FFNRule{}) {
			p.Config.FFNHidden = p.FFN.Hidden(p.Config.Dim)
		}
	}
	return all
}

// Find is the preset called name, in any case: llama3-8b, 8B and 8b are one. The error names the nearest.
func Find(name string) (Preset, error) {
	bare := func(s string) string { return strings.TrimPrefix(strings.ToLower(s), "llama3-") }
	var names []string
	for _, p := range Presets() {
		if bare(p.Name) == bare(name) {
			return p, nil
		}
		names = append(names, p.Name)
	}
	if near := manifest.Nearest(name, names); near != "" {
		return Preset{}, exit.Input.Errorf("unknown model %q: did you mean %s? (meshplan models lists all)", name, near)
	}
	return Preset{}, exit.Input.Errorf("unknown model %q: not among %s, llama3 (with every dimension given), and no config.json", name, strings.Join(names, ", "))
}

// FFNRule is Llama's rule for the hidden size of the feed-forward network.
type FFNRule struct {
	Multiplier float64
	MultipleOf int
}

// Hidden is two thirds of 4*dim, times the multiplier, rounded up to MultipleOf.
func (r FFNRule) Hidden(dim int) int {
	h := int(r.Multiplier * float64(2*4*dim/3))
	return (h + r.MultipleOf - 1) / r.MultipleOf * r.MultipleOf
}

// Standard is what all models share: norm, rotary embedding, longest row.
func Standard() Config {
	return Config{
		MaxSeqLen: 131072, NormEps: 1e-5, RopeTheta: 500000,
		RopeScaling: &manifest.RopeScaling{Factor: 8, LowFreqFactor: 1, HighFreqFactor: 4, OriginalMaxLen: 8192},
	}
}

func dims(dim, layers, heads, kvHeads, ffn, vocab int) Config {
	c := Standard()
	c.Dim, c.NumLayers, c.NumHeads, c.NumKVHeads, c.HeadDim = dim, layers, heads, kvHeads, dim/heads
	c.FFNHidden, c.VocabSize = ffn, vocab
	return c
}

func tied(c Config) Config {
	c.Tied = true
	return c
}

// maxConfigBytes bounds a config.json; real ones have 1 KB.
const maxConfigBytes = 1 << 20

// hfRope is rope_scaling, or since transformers 5 rope_parameters.
type hfRope struct {
	Type           string   `json:"rope_type"`
	OldType        string   `json:"type"`
	Theta          *float64 `json:"rope_theta"`
	Factor         float64  `json:"factor"`
	LowFreqFactor  float64  `json:"low_freq_factor"`
	HighFreqFactor float64  `json:"high_freq_factor"`
	OriginalMaxLen int      `json:"original_max_position_embeddings"`
}

// hfConfig is what we use of a config.json, with transformers' names.
type hfConfig struct {
	Architectures []string `json:"architectures"`
	ModelType     string   `json:"model_type"`
	Dim           int      `json:"hidden_size"`
	NumLayers     int      `json:"num_hidden_layers"`
	NumHeads      int      `json:"num_attention_heads"`
	NumKVHeads    int      `json:"num_key_value_heads"`
	HeadDim       int      `json:"head_dim"`
	FFNHidden     int      `json:"intermediate_size"`
	VocabSize     int      `json:"vocab_size"`
	MaxSeqLen     int      `json:"max_position_embeddings"`
	NormEps       *float64 `json:"rms_norm_eps"`
	RopeTheta     *float64 `json:"rope_theta"`
	RopeScaling   *hfRope  `json:"rope_scaling"`
	RopeParams    *hfRope  `json:"rope_parameters"`
	Tied          bool     `json:"tie_word_embeddings"`
	AttentionBias bool     `json:"attention_bias"`
	MLPBias       bool     `json:"mlp_bias"`
	Act           string   `json:"hidden_act"`
}

// ReadHuggingFace reads the config.json of a LlamaForCausalLM. Fields that say nothing about the architecture
// are passed over; an architecture that we do not compute is refused. The dimensions' ranges are left to
// manifest.Validate.
func ReadHuggingFace(r io.Reader) (Config, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxConfigBytes+1))
	if err != nil {
		return Config{}, err
	}
	if len(data) > maxConfigBytes {
		return Config{}, exit.Input.Errorf("larger than %d MiB", maxConfigBytes>>20)
	}
	var h hfConfig
	if err := json.Unmarshal(data, &h); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return Config{}, exit.Input.Errorf("%s: want %s, got %s", wrong.Field, wrong.Type.Kind(), wrong.Value)
		}
		return Config{}, exit.Input.Errorf("not a config.json: %v", err)
	}
	if err := h.check(); err != nil {
		return Config{}, err
	}
	return h.config()
}

// check refuses what is no Llama.
func (h *hfConfig) check() error {
	if !slices.Equal(h.Architectures, []string{"LlamaForCausalLM"}) {
		return exit.Input.Errorf("architectures: %q: only LlamaForCausalLM is known", h.Architectures)
	}
	if h.AttentionBias || h.MLPBias {
		return exit.Input.Errorf("attention_bias, mlp_bias: linears with a bias are not computed")
	}
	if h.Act != "" && h.Act != "silu" {
		return exit.Input.Errorf("hidden_act: %q: only silu is computed", h.Act)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"hidden_size", h.Dim}, {"num_hidden_layers", h.NumLayers}, {"num_attention_heads", h.NumHeads}, {"intermediate_size", h.FFNHidden},
		{"vocab_size", h.VocabSize}, {"max_position_embeddings", h.MaxSeqLen}} {
		if f.value < 1 {
			return exit.Input.Errorf("%s: %d: must be given and at least 1", f.name, f.value)
		}
	}
	return nil
}

func (h *hfConfig) config() (Config, error) {
	c := dims(h.Dim, h.NumLayers, h.NumHeads, h.NumHeads, h.FFNHidden, h.VocabSize)
	c.MaxSeqLen, c.Tied, c.RopeScaling = h.MaxSeqLen, h.Tied, nil
	c.NormEps, c.RopeTheta = 1e-6, 10000 // transformers' defaults
	if h.NumKVHeads != 0 {
		c.NumKVHeads = h.NumKVHeads
	}
	if h.HeadDim != 0 {
		c.HeadDim = h.HeadDim
	}
	if h.NormEps != nil {
		c.NormEps = *h.NormEps
	}
	rope := h.RopeScaling
	if h.RopeParams != nil {
		rope = h.RopeParams
	}
	if rope != nil && rope.Theta != nil {
		c.RopeTheta = *rope.Theta
	} else if h.RopeTheta != nil {
		c.RopeTheta = *h.RopeTheta
	}
	if rope == nil {
		return c, nil
	}
	switch kind := cmp.Or(rope.Type, rope.OldType); kind {
	case "", "default":
	case "llama3":
		c.RopeScaling = &manifest.RopeScaling{Factor: rope.Factor, LowFreqFactor: rope.LowFreqFactor, HighFreqFactor: rope.HighFreqFactor, OriginalMaxLen: rope.OriginalMaxLen}
	default:
		return c, exit.Input.Errorf("rope_scaling: type %q: only llama3 is known", kind)
	}
	return c, nil
}
