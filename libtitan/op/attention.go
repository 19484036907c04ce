package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
)

// AttentionAttr: positions are in placement.HeadTail's order over Pieces/2 ranks; 0: in their own. Ring: keys and
// values stay cut over cp and go round (Liu et al., 2023).
type AttentionAttr struct {
	Pieces int
	Ring   bool
}

// In the rules s and t are query and key positions, n and g query and key-value heads (n a multiple of g:
// query head i reads key-value head i·g/n), h a head's channels.
var attentionOp = &graph.Op{
	Name:   "attention",
	Cut:    cut("b", "s", "ng"),
	Rule:   rule("bsnh,btgh,btgh->bsnh,bns"),
	DTypes: func(n *graph.Node) []dtype.DType { return []dtype.DType{n.In[0].DType, dtype.Float32} },
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		return g.Add(attentionBackwardOp, n.Attr, d[0], n.In[0], n.In[1], n.In[2], n.Results[0], n.Results[1])
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		o, lse := graph.NewArray(in[0].Shape...), graph.NewArray(n.Results[1].Shape...)
		eachQuery(in[0], in[1], in[2], func(c cell, scores []float64) {
			top, sum := math.Inf(-1), 0.0
			for _, x := range scores {
				top = max(top, x)
			}
			for _, x := range scores {
				sum += math.Exp(x - top)
			}
			lse.Data[c.stat] = top + math.Log(sum)
			for t, x := range scores {
				p := math.Exp(x - lse.Data[c.stat])
				for h := range c.headDim {
					o.Data[c.q+h] += p * in[2].Data[c.k(t)+h]
				}
			}
		})
		return []graph.Array{o, lse}
	},
}

// With p = softmax(s), s = q·k/√H: dv = pᵀ·do, ds = p·(do·vᵀ - Σ do·o), dq = ds·k/√H, dk = dsᵀ·q/√H.
var attentionBackwardOp = &graph.Op{
	Name: "attention_backward",
	Cut:  cut("b", "s", "ng"),
	Rule: rule("bsnh,bsnh,btgh,btgh,bsnh,bns->bsnh,btgh,btgh"),
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		do, q, k, v, o, lse := in[0], in[1], in[2], in[3], in[4], in[5]
		dq, dk, dv := graph.NewArray(q.Shape...), graph.NewArray(k.Shape...), graph.NewArray(v.Shape...)
		eachQuery(q, k, v, func(c cell, scores []float64) {
			var delta float64
			for h := range c.headDim {
				delta += do.Data[c.q+h] * o.Data[c.q+h]
			}
			for t, x := range scores {
				p, dp := math.Exp(x-lse.Data[c.stat]), 0.0
				for h := range c.headDim {
					dp += do.Data[c.q+h] * v.Data[c.k(t)+h]
					dv.Data[c.k(t)+h] += p * do.Data[c.q+h]
				}
				ds := p * (dp - delta) / math.Sqrt(float64(c.headDim))
				for h := range c.headDim {
					dq.Data[c.q+h] += ds * k.Data[c.k(t)+h]
					dk.Data[c.k(t)+h] += ds * q.Data[c.q+h]
				}
			}
		})
		return []graph.Array{dq, dk, dv}
	},
}

// cell is where one query row lies: its offset in q, in the statistics, and (by key position) in k.
type cell struct {
	q, stat, headDim int
	k                func(t int) int
}

// eachQuery calls f for every query row with its scaled scores against the keys at or before it.
func eachQuery(q, k, v graph.Array, f func(c cell, scores []float64)) {
	batch, seq, heads, dim := q.Shape[0], q.Shape[1], q.Shape[2], q.Shape[3]
	keys, kvHeads := k.Shape[1], k.Shape[2]
	for b := range batch {
		for s := range seq {
			for n := range heads {
				c := cell{q: ((b*seq+s)*heads + n) * dim, stat: (b*heads+n)*seq + s, headDim: dim}
				c.k = func(t int) int { return ((b*keys+t)*kvHeads + n*kvHeads/heads) * dim }
				scores := make([]float64, s+1)
				for t := range scores {
					for h := range dim {
						scores[t] += q.Data[c.q+h] * k.Data[c.k(t)+h] / math.Sqrt(float64(dim))
					}
				}
				f(c, scores)
			}
		}
	}
}

// Attention is causal softmax(q·kᵀ/√H)·v for q [B, S, N, H] and k, v [B, S, G, H] (grouped queries: Ainslie et al., 2023).
func Attention(g *graph.Graph, q, k, v *graph.Value) *graph.Value {
	return g.Add(attentionOp, AttentionAttr{}, q, k, v)[0]
}
