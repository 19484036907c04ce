package nn

import (
	"titan/libtitan/graph"
	"titan/libtitan/op"
)

// use is the parameter's value in the type that the model computes in.
func (p *Param) use(g *graph.Graph) *graph.Value {
	return op.Cast(g, g.Param(p.FQN, p.Shape), g.Compute)
}

// Linear is y = x·Wᵀ, W [out, in], without bias.
type Linear struct {
	Name   string
	Weight *Param
}

// NewLinear makes the linear layer prefix.name.
func NewLinear(prefix, name string, out, in int, init Init) *Linear {
	return &Linear{name, &Param{FQN: prefix + name + ".weight", Shape: []int64{int64(out), int64(in)}, Init: init}}
}

// Forward maps x [B, S, in] to [B, S, out].
func (l *Linear) Forward(g *graph.Graph, x *graph.Value) *graph.Value {
	defer g.Scope(l.Name)()
	return op.Einsum(g, "bsk,nk->bsn", x, l.Weight.use(g))
}

// RMSNorm scales each row to a root mean square of 1, then by a learned weight.
type RMSNorm struct {
	Name   string
	Weight *Param
	Eps    float64
}

// NewRMSNorm makes the norm prefix.name over dim channels.
func NewRMSNorm(prefix, name string, dim int, eps float64) *RMSNorm {
	return &RMSNorm{name, &Param{FQN: prefix + name + ".weight", Shape: []int64{int64(dim)}}, eps}
}

// Forward keeps the shape of x [B, S, D].
func (n *RMSNorm) Forward(g *graph.Graph, x *graph.Value) *graph.Value {
	defer g.Scope(n.Name)()
	return op.RMSNorm(g, x, n.Weight.use(g), n.Eps)
}

// Embedding is a table of rows, looked up by token.
type Embedding struct {
	Name   string
	Weight *Param
}

// NewEmbedding makes the table name, [vocab, dim].
func NewEmbedding(name string, vocab, dim int, init Init) *Embedding {
	return &Embedding{name, &Param{FQN: name + ".weight", Shape: []int64{int64(vocab), int64(dim)}, Init: init}}
}

// Forward maps tokens [B, S] to rows [B, S, D].
func (e *Embedding) Forward(g *graph.Graph, tokens *graph.Value) *graph.Value {
	defer g.Scope(e.Name)()
	return op.Embedding(g, tokens, e.Weight.use(g))
}
