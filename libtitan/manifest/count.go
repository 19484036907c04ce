package manifest

import (
	"fmt"
	"slices"
	"strings"
)

// NumParams is the number of parameters of the whole model; a tied lm_head counts once. The formulas below are
// torchtitan's models/llama3 and, for experts, its MoE without a shared expert.
func (c *ModelConfig) NumParams() int64 {
	n := c.ModuleParams("tok_embeddings") + int64(c.NumLayers)*c.ModuleParams("layers.0") + c.ModuleParams("norm")
	if !c.Tied {
		n += c.ModuleParams("lm_head")
	}
	return n
}

// ModuleParams is the number of parameters that a stage holds for one of the model's modules: tok_embeddings,
// layers.N, norm, lm_head. A tied lm_head counts in full, since its stage keeps a copy.
func (c *ModelConfig) ModuleParams(fqn string) int64 {
	dim, vocab := int64(c.Dim), int64(c.VocabSize)
	switch {
	case fqn == "tok_embeddings", fqn == "lm_head":
		return vocab * dim
	case fqn == "norm":
		return dim
	case strings.HasPrefix(fqn, "layers."):
		return c.layerParams(int64(c.NumExperts))
	}
	return 0
}

// StageParams is the number of parameters that a stage of these modules holds. A stage with both ends of a tied
// model keeps one copy of their weight.
func (c *ModelConfig) StageParams(fqns []string) (n int64) {
	for _, fqn := range fqns {
		n += c.ModuleParams(fqn)
	}
	if c.Tied && slices.Contains(fqns, "tok_embeddings") && slices.Contains(fqns, "lm_head") {
		n -= c.ModuleParams("lm_head")
	}
	return n
}

// layerParams counts one layer of which experts experts are looked at; a dense model has 0.
func (c *ModelConfig) layerParams(experts int64) int64 {
	dim, ffn, head := int64(c.Dim), int64(c.FFNHidden), int64(c.HeadDim)
	q, kv := int64(c.NumHeads)*head, int64(c.NumKVHeads)*head
	n := 2*dim + 2*dim*q + 2*dim*kv // norms; wq, wo; wk, wv
	if c.NumExperts == 0 {
		return n + 3*dim*ffn
	}
	return n + dim*int64(c.NumExperts) + experts*3*dim*ffn // router; w1, w2, w3 of each
}

// FlopsPerToken is what a forward and backward spends on a token in a row of seqLen, as torchtitan counts it
// (HEAD): 6 per parameter, embedding look-ups aside, and 12 per layer, head channel and position.
// Causality and recomputation are not counted; a token visits one expert.
func (c *ModelConfig) FlopsPerToken(seqLen int) int64 {
	n := int64(c.NumLayers)*c.layerParams(1) + c.ModuleParams("norm") + c.ModuleParams("lm_head")
	return 6*n + 6*int64(c.NumLayers)*int64(c.NumHeads)*2*int64(c.HeadDim)*int64(seqLen)
}

// countable reports whether the counts above stay below 2^60, so that they cannot overflow.
func (c *ModelConfig) countable(seqLen int) bool {
	layers, dim, q := float64(c.NumLayers), float64(c.Dim), float64(c.NumHeads)*float64(c.HeadDim)
	params := layers*(2*dim+4*dim*q+dim*float64(c.NumExperts)+3*dim*float64(c.FFNHidden)*float64(max(1, c.NumExperts))) +
		2*float64(c.VocabSize)*dim + dim
	return 6*params+12*layers*q*float64(seqLen) < 1<<60
}

// derive fills the fields that follow from others, but for those whose paths are in keep.
func (m *Manifest) derive(keep map[string]bool) {
	if c := m.Model; c != nil && m.Training != nil && c.Config.countable(m.Training.SeqLen) {
		if !keep["model.num_params"] {
			c.NumParams = c.Config.NumParams()
		}
		if !keep["model.flops_per_token"] {
			c.FlopsPerToken = c.Config.FlopsPerToken(m.Training.SeqLen)
		}
	}
	if m.Training != nil && m.Mesh != nil && !keep["training.grad_accum_steps"] {
		if rows := m.Training.LocalBatchSize * m.Mesh.Dims.DPReplicate * m.Mesh.Dims.DPShard; rows > 0 {
			m.Training.GradAccumSteps = m.Training.GlobalBatchSize / rows
		}
	}
	if m.Model != nil && m.Pipeline != nil {
		for i := range m.Pipeline.Stages {
			if s := &m.Pipeline.Stages[i]; !keep[fmt.Sprintf("pipeline.stages.%d.num_params", i)] {
				s.NumParams = m.Model.Config.StageParams(s.FQNs)
			}
		}
	}
}

// Derive fills the fields that follow from others: num_params of the model and of stages, flops_per_token and
// grad_accum_steps.
func (m *Manifest) Derive() { m.derive(nil) }
