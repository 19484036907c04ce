package op

import (
	"math"

	"titan/libtitan/dtype"
	"titan/libtitan/graph"
	"titan/libtitan/placement"
)

// RopeTableAttr says which angles a table holds: positions 0..SeqLen-1 times the frequencies of a head.
// Factor 0 means unscaled.
type RopeTableAttr struct {
	SeqLen, HeadDim           int
	Pieces                    int // rows are in placement.HeadTail's order over Pieces/2 ranks; 0: in their own
	Theta                     float64
	Factor, LowFreq, HighFreq float64 // Llama 3.1's scaling
	OriginalMaxLen            int
}

// Frequencies are 1/theta^(2i/HeadDim), stretched as Llama 3.1 does: wavelengths beyond
// OriginalMaxLen/LowFreq by Factor, those below OriginalMaxLen/HighFreq not at all, blended between.
// They are float32, step by step, as PyTorch computes them.
func (a RopeTableAttr) Frequencies() []float32 {
	f := make([]float32, a.HeadDim/2)
	for i := range f {
		exp := float32(2*i) / float32(a.HeadDim)
		f[i] = 1 / float32(math.Pow(a.Theta, float64(exp)))
		if a.Factor == 0 {
			continue
		}
		wavelen := 2 * math.Pi / float64(f[i])
		switch length := float64(a.OriginalMaxLen); {
		case wavelen > length/a.LowFreq:
			f[i] /= float32(a.Factor)
		case wavelen >= length/a.HighFreq:
			smooth := float32((length/wavelen - a.LowFreq) / (a.HighFreq - a.LowFreq))
			f[i] = (1-smooth)*f[i]/float32(a.Factor) + smooth*f[i]
		}
	}
	return f
}

// Fill writes rows start and on of the table: cos and sin, each [rows, HeadDim/2].
func (a RopeTableAttr) Fill(cos, sin []float32, start int) {
	freqs := a.Frequencies()
	for i := range cos {
		position := placement.HeadTail(a.SeqLen, a.Pieces, start+i/len(freqs))
		angle := float32(position) * freqs[i%len(freqs)]
		s, c := math.Sincos(float64(angle))
		cos[i], sin[i] = float32(c), float32(s)
	}
}

var ropeTableOp = &graph.Op{
	Name: "rope_table",
	Cut:  cut("s"),
	Rule: rule("->sp,sp"),
	Sizes: func(n *graph.Node) map[byte]int {
		a := n.Attr.(RopeTableAttr)
		return map[byte]int{'s': a.SeqLen, 'p': a.HeadDim / 2}
	},
	DTypes: func(*graph.Node) []dtype.DType { return []dtype.DType{dtype.Float32, dtype.Float32} },
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		size := n.Results[0].NumElements()
		cos, sin := make([]float32, size), make([]float32, size)
		n.Attr.(RopeTableAttr).Fill(cos, sin, 0)
		out := []graph.Array{graph.NewArray(n.Results[0].Shape...), graph.NewArray(n.Results[0].Shape...)}
		for i := range size {
			out[0].Data[i], out[1].Data[i] = float64(cos[i]), float64(sin[i])
		}
		return out
	},
}

// RopeTable is the cosine and sine of every position's angles, float32 [S, H/2] whatever the model computes in.
// It is derived, not state: no checkpoint holds it.
func RopeTable(g *graph.Graph, a RopeTableAttr) (cos, sin *graph.Value) {
	r := g.Add(ropeTableOp, a)
	return r[0], r[1]
}

// RopeAttr: Inverse turns the other way.
type RopeAttr struct{ Inverse bool }

var ropeOp = &graph.Op{
	Name: "rope",
	Cut:  cut("b", "s", "n"),
	Rule: rule("bsnh,sp,sp->bsnh"),
	VJP: func(g *graph.Graph, n *graph.Node, d []*graph.Value) []*graph.Value {
		inverse := RopeAttr{!n.Attr.(RopeAttr).Inverse}
		return []*graph.Value{g.Add(n.Op, inverse, d[0], n.In[1], n.In[2])[0], nil, nil}
	},
	Eval: func(n *graph.Node, in []graph.Array) []graph.Array {
		x, out := in[0], graph.NewArray(in[0].Shape...)
		seq, heads, half := x.Shape[1], x.Shape[2], x.Shape[3]/2
		sign := 1.0
		if n.Attr.(RopeAttr).Inverse {
			sign = -1
		}
		for i := range len(x.Data) / 2 {
			t := i/half/heads%seq*half + i%half
			c, s := in[1].Data[t], sign*in[2].Data[t]
			re, im := x.Data[2*i], x.Data[2*i+1]
			out.Data[2*i], out.Data[2*i+1] = re*c-im*s, re*s+im*c
		}
		return []graph.Array{out}
	},
}

// Rope turns each pair of neighbouring channels of x [B, S, N, H] by its position's angle
// (Su et al., 2021, in the complex form of the Llama checkpoints).
func Rope(g *graph.Graph, x, cos, sin *graph.Value) *graph.Value {
	return g.Add(ropeOp, RopeAttr{}, x, cos, sin)[0]
}
