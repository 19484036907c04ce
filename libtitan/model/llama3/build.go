package llama3

import (
	"fmt"
	"math"

	"titan/libtitan/manifest"
	"titan/libtitan/nn"
	"titan/libtitan/op"
)

// Config holds the dimensions.
type Config = manifest.ModelConfig

// New makes the whole decoder. The initial distributions are torchtitan's.
func New(c Config) *Decoder {
	m := &Decoder{
		TokEmbeddings: nn.NewEmbedding("tok_embeddings", c.VocabSize, c.Dim, nn.Init{Kind: nn.Normal, Std: 1}),
		Norm:          nn.NewRMSNorm("", "norm", c.Dim, c.NormEps),
		config:        c,
	}
	for i := range c.NumLayers {
		m.Layers = append(m.Layers, newBlock(c, i))
	}
	std := 1 / math.Sqrt(float64(c.Dim))
	m.LMHead = nn.NewLinear("", "lm_head", c.VocabSize, c.Dim, nn.Init{Kind: nn.TruncNormal, Std: std, Cut: 3 * std})
	if c.Tied {
		m.LMHead.Weight = m.TokEmbeddings.Weight
	}
	return m
}

func newBlock(c Config, i int) *Block {
	prefix := fmt.Sprintf("layers.%d.", i)
	// The bounds ±2 are absolute; the residual branches of deeper layers start smaller.
	plain := nn.Init{Kind: nn.TruncNormal, Std: 0.02, Cut: 2}
	deep := nn.Init{Kind: nn.TruncNormal, Std: 0.02 / math.Sqrt(2*float64(i+1)), Cut: 2}
	linear := func(module, name string, out, in int, init nn.Init) *nn.Linear {
		return nn.NewLinear(prefix+module+".", name, out, in, init)
	}
	return &Block{
		Index:         i,
		AttentionNorm: nn.NewRMSNorm(prefix, "attention_norm", c.Dim, c.NormEps),
		Attention: &Attention{
			WQ:      linear("attention", "wq", c.NumHeads*c.HeadDim, c.Dim, plain),
			WK:      linear("attention", "wk", c.NumKVHeads*c.HeadDim, c.Dim, plain),
			WV:      linear("attention", "wv", c.NumKVHeads*c.HeadDim, c.Dim, plain),
			WO:      linear("attention", "wo", c.Dim, c.NumHeads*c.HeadDim, deep),
			heads:   c.NumHeads,
			kvHeads: c.NumKVHeads,
			headDim: c.HeadDim,
		},
		FFNNorm: nn.NewRMSNorm(prefix, "ffn_norm", c.Dim, c.NormEps),
		FeedForward: &FeedForward{
			W1: linear("feed_forward", "w1", c.FFNHidden, c.Dim, plain),
			W2: linear("feed_forward", "w2", c.Dim, c.FFNHidden, deep),
			W3: linear("feed_forward", "w3", c.FFNHidden, c.Dim, deep),
		},
	}
}

// Only is the part of m made of the modules fqns (tok_embeddings, layers.N, norm, lm_head), under their own names.
func (m *Decoder) Only(fqns []string) *Decoder {
	keep := map[string]bool{}
	for _, f := range fqns {
		keep[f] = true
	}
	part := &Decoder{config: m.config}
	if keep["tok_embeddings"] {
		part.TokEmbeddings = m.TokEmbeddings
	}
	for _, b := range m.Layers {
		if keep[fmt.Sprintf("layers.%d", b.Index)] {
			part.Layers = append(part.Layers, b)
		}
	}
	if keep["norm"] {
		part.Norm = m.Norm
	}
	if keep["lm_head"] {
		part.LMHead = m.LMHead
	}
	return part
}

// Params lists the parameters in torchtitan's order, a tied head's once.
func (m *Decoder) Params() []*nn.Param {
	var out []*nn.Param
	if m.TokEmbeddings != nil {
		out = append(out, m.TokEmbeddings.Weight)
	}
	for _, b := range m.Layers {
		a, f := b.Attention, b.FeedForward
		for _, l := range []*nn.Linear{a.WQ, a.WK, a.WV, a.WO, f.W1, f.W2, f.W3} {
			out = append(out, l.Weight)
		}
		out = append(out, b.AttentionNorm.Weight, b.FFNNorm.Weight)
	}
	if m.Norm != nil {
		out = append(out, m.Norm.Weight)
	}
	if m.LMHead != nil && (m.TokEmbeddings == nil || m.LMHead.Weight != m.TokEmbeddings.Weight) {
		out = append(out, m.LMHead.Weight)
	}
	return out
}

func rope(c Config, seqLen int) op.RopeTableAttr {
	a := op.RopeTableAttr{SeqLen: seqLen, HeadDim: c.HeadDim, Theta: c.RopeTheta}
	if s := c.RopeScaling; s != nil {
		a.Factor, a.LowFreq, a.HighFreq, a.OriginalMaxLen = s.Factor, s.LowFreqFactor, s.HighFreqFactor, s.OriginalMaxLen
	}
	return a
}
