// Package llama3 is the Llama 3 decoder. [New] makes the whole model; [Decoder.Only] keeps some of its modules
// under their own names, and Forward passes through what is absent.
//
// Letters of shapes: B rows, S positions, D channels, N query heads, G key-value heads, H channels a head,
// F hidden channels, V vocabulary.
package llama3

import (
	"strconv"

	"titan/libtitan/graph"
	"titan/libtitan/nn"
	"titan/libtitan/op"
)

// Decoder is the model, or a part of it.
type Decoder struct {
	TokEmbeddings *nn.Embedding // nil: absent
	Layers        []*Block      // those present, in their order
	Norm          *nn.RMSNorm   // nil: absent
	LMHead        *nn.Linear    // nil: absent
	config        Config
}

// Forward maps tokens [B, S] to logits [B, S, V]. Where the embedding is absent the input is the hidden state
// [B, S, D] instead; where the head is absent the output is.
func (m *Decoder) Forward(g *graph.Graph, in *graph.Value) *graph.Value {
	h := in
	if m.TokEmbeddings != nil {
		h = m.TokEmbeddings.Forward(g, in)
	}
	if len(m.Layers) > 0 {
		cos, sin := op.RopeTable(g, rope(m.config, in.Shape[1]))
		for _, block := range m.Layers {
			h = block.Forward(g, h, cos, sin)
		}
	}
	if m.Norm != nil {
		h = m.Norm.Forward(g, h)
	}
	if m.LMHead != nil {
		h = m.LMHead.Forward(g, h)
	}
	return h
}

// Block is one layer: attention, then the feed-forward network, each on a normalised residual stream.
type Block struct {
	Index         int
	AttentionNorm *nn.RMSNorm
	Attention     *Attention
	FFNNorm       *nn.RMSNorm
	FeedForward   *FeedForward
}

// Forward keeps the shape of hBSD.
func (b *Block) Forward(g *graph.Graph, hBSD, cos, sin *graph.Value) *graph.Value {
	defer g.Scope("layers." + strconv.Itoa(b.Index))()
	hBSD = op.Add(g, hBSD, b.Attention.Forward(g, b.AttentionNorm.Forward(g, hBSD), cos, sin))
	return op.Add(g, hBSD, b.FeedForward.Forward(g, b.FFNNorm.Forward(g, hBSD)))
}

// Attention is causal self-attention with grouped queries.
type Attention struct {
	WQ, WK, WV, WO          *nn.Linear
	heads, kvHeads, headDim int
}

// Forward keeps the shape of xBSD.
func (a *Attention) Forward(g *graph.Graph, xBSD, cos, sin *graph.Value) *graph.Value {
	defer g.Scope("attention")()
	qBSNH := op.SplitHeads(g, a.WQ.Forward(g, xBSD), a.heads, a.headDim)
	kBSGH := op.SplitHeads(g, a.WK.Forward(g, xBSD), a.kvHeads, a.headDim)
	vBSGH := op.SplitHeads(g, a.WV.Forward(g, xBSD), a.kvHeads, a.headDim)
	qBSNH, kBSGH = op.Rope(g, qBSNH, cos, sin), op.Rope(g, kBSGH, cos, sin)
	oBSNH := op.Attention(g, qBSNH, kBSGH, vBSGH)
	return a.WO.Forward(g, op.MergeHeads(g, oBSNH))
}

// FeedForward is SwiGLU between two linear maps.
type FeedForward struct {
	W1, W2, W3 *nn.Linear // gate, down, up
}

// Forward keeps the shape of xBSD.
func (f *FeedForward) Forward(g *graph.Graph, xBSD *graph.Value) *graph.Value {
	defer g.Scope("feed_forward")()
	return f.W2.Forward(g, op.SwiGLU(g, f.W1.Forward(g, xBSD), f.W3.Forward(g, xBSD)))
}
